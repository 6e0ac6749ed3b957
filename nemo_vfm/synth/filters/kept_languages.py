"""Drops rows with a turn in a language that is not wanted, guessed by script, frequent words and letters."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache

from nemo_vfm.dedup.texts.normalize_text import words
from nemo_vfm.synth.filters.turn_texts import Turns, require_turns, turns_of
from nemo_vfm.synth.programs.row_program import Draft

#: Letters that only these languages have, among those of the script above.
LETTERS: dict[str, dict[str, str]] = {
    "LATIN": {
        "de": "ß", "es": "ñ¿¡", "pt": "ãõ", "pl": "ąęłńśźż", "cs": "ěřůčžďťň", "ro": "ățşţ", "hu": "őű", "tr": "ğış",
        "da": "øæ", "nb": "øæ", "vi": "ơưđạảấầẩậắằặẹẻếềểễệỉịọỏốồổộớờởợụủứừửựỳỵỷ", "fr": "œ", "sv": "å",
    },
    "CYRILLIC": {"uk": "їєґі", "ru": "ыэё", "sr": "јљњћђџ"},
    "ARABIC": {"fa": "ژ", "ur": "ٹڈڑںہھے"},
}  # fmt: skip
#: Scripts that are taken for one language: other languages written in them are not told apart from it.
ALONE = {
    "GREEK": "el", "HEBREW": "he", "HANGUL": "ko", "THAI": "th", "DEVANAGARI": "hi", "BENGALI": "bn", "TAMIL": "ta",
    "TELUGU": "te", "GEORGIAN": "ka", "ARMENIAN": "hy",
}  # fmt: skip
_MOST_LETTERS = 5_000  # of a text that are looked at
_LEAST_SCORE, _LEAST_LEAD = 0.1, 1.15
_LETTER_WEIGHT = 0.5  # of a word with a letter of few languages, beside 1 for a frequent word
_WEIGHTS = {"CJK": 3, "HIRAGANA": 3, "KATAKANA": 3, "HANGUL": 3}  # one of their signs says as much as so many letters
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+", re.DOTALL)


class KeptLanguages:
    """Keeps rows whose turns are in these languages, as `language_of` guesses them.

    Args:
        languages: ISO 639-1, such as `[en, de]`.
        turns: that are checked, each by itself.
        keep_unknown: whether a turn of unknown language stays: a short one, or one of code alone.
    """

    def __init__(self, *, languages: Sequence[str], turns: Turns = "all", keep_unknown: bool = True) -> None:
        require_turns(turns)
        if not languages or (unknown := sorted(set(languages) - set(LANGUAGES))):
            said = (
                f"{unknown[0]!r} is not one of the languages that can be recognised"
                if languages
                else "languages is empty"
            )
            raise ValueError(f"{said}; choose from {', '.join(LANGUAGES)}")
        self.languages, self.turns, self.keep_unknown = frozenset(languages), turns, keep_unknown

    def broken_rule(self, draft: Draft) -> str | None:
        """See `RowFilter`."""
        for text in turns_of(draft, self.turns):
            language = language_of(text)
            if language is None and not self.keep_unknown:
                return "language not recognized"
            if language is not None and language not in self.languages:
                return f"language {language}"
        return None


#: By script, then by language (ISO 639-1); each word in small letters.
WORDS: dict[str, dict[str, str]] = {
    "LATIN": {
        "en": "i my me he she his her him our us been these those only such may must use other some any each no "
              "so out up the of and to in is that it for was on are with as this be by at from or an not have you "
              "which were but has their can they we how what your would there if will more when who than do does "
              "should its into about",
        "de": "der die das und ist nicht ein eine einen den dem des zu mit von auf für im sich auch es an wird "
              "sind wie als aus bei nach oder kann ich sie wir war hat wenn nur noch über werden zum zur aber "
              "diese dass durch einem einer man mehr sehr so was ihre um",
        "fr": "le la les de des du et est un une que qui dans pour pas sur au aux avec ce cette ces il elle nous "
              "vous je ne se son sa ses par plus mais ou où sont être été ont leur comme en tout peut très fait "
              "si y lui on",
        "es": "el la los las de del y es un una que en por para con no se su sus al lo como más pero o este esta "
              "son fue ser está hay cuando muy también ya entre sin sobre todo le si han era yo qué puede desde "
              "nos porque",
        "pt": "o a os as de do da dos das e é um uma que em no na nos nas por para com não se seu sua ao mais mas "
              "ou como foi são ser está pelo pela quando muito também já entre sem sobre isso você eu até pode "
              "num numa à",
        "it": "il lo la i gli le di del della dei delle e è un una che in nel nella per con non si su al alla da "
              "dal come più ma o questo questa sono era essere anche ha quando molto tra senza loro suo sua ci se "
              "cosa può dove",
        "nl": "de het een en van is in op te dat niet met voor zijn aan er die ook als om bij door maar naar uit "
              "kan wordt worden hij ze wij ik je u was heeft hebben deze dit nog wat over meer zo tot geen of dan "
              "veel",
        "sv": "och att det som en ett är i på av för med inte den till om har de jag vi så kan från var eller när "
              "men sig vid också ska hur mycket efter under han hon alla detta mer finns måste där man inom utan "
              "vara bli",
        "da": "og at det som en et er i på af for med ikke den til om har de jeg vi så kan fra var eller når men "
              "sig ved også skal hvordan meget efter under han hun alle dette mere findes må der man uden være "
              "blive hvad blev nogle noget hvor denne dig mig mellem bruges",
        "nb": "og at det som en et er i på av for med ikke den til om har de jeg vi så kan fra var eller når men "
              "seg ved også skal hvordan mye etter under han hun alle dette mer finnes må der man uten være bli "
              "hva ble noen noe hvor denne deg meg mellom brukes",
        "fi": "ja on ei se että en hän mutta niin kuin kun mitä tai ovat oli voi myös jos sen ole minä sinä me he "
              "joka jotka tämä tämän sitä vain ne nyt siitä ollut olla miten hyvin enemmän jälkeen kanssa sekä "
              "voidaan",
        "pl": "i w nie na się jest to z do że jak o po co tak ale są od za przez dla czy oraz może być był była "
              "już tylko lub przy tego ten ta te jego ich który która które gdy bardzo więc także można bez pod "
              "je",
        "cs": "a v se na je že s z do to o jako i ale k po jsou pro by při co tak od nebo byl byla bylo která "
              "který které jeho jejich také může být když už jen ještě velmi více podle ve ze není tento však bez "
              "mezi jsem",
        "ro": "și în de la a cu nu este o un pe care să din ce mai sunt pentru că se au fost dar sau ca le prin "
              "după cum această acest foarte fi ai lui ei al ale am dacă când poate între fără unei unui cele",
        "hu": "a az és hogy nem is egy ez de van meg csak ha már mint azt el volt vagy ki minden még nagyon lehet "
              "ami aki után majd több amely kell vannak fel pedig mert sem lesz ezt között szerint olyan",
        "tr": "ve bir bu da de için ile çok ne o var gibi daha ama kadar olan olarak mi mı değil ya sonra her en "
              "ben sen biz onun veya nasıl ise diye şey olduğu olur kendi göre yok ancak hem önce üzerinde",
        "id": "yang dan di itu dengan untuk tidak ini dari dalam akan pada adalah ke karena ada saya anda bisa "
              "juga atau sudah kami kita mereka oleh sebagai lebih telah dapat seperti bahwa orang apa jika saat "
              "hanya harus",
        "vi": "và là của có không được cho một các trong với người này đã những khi để tôi đến như nhưng từ cũng "
              "rất nhiều hay ra làm hoặc về bạn thì nếu vào sẽ phải họ chúng đó trên",
    },
    "CYRILLIC": {
        "ru": "и в не на что с как это по но из у за так же от для его к бы или если мы вы они она он был была "
              "были быть который которые все только также очень может когда уже есть нет этот чтобы при до о ещё "
              "вот можно",
        "uk": "і в не на що з як це по але із у за так же від для його до б або якщо ми ви вони вона він був була "
              "були бути який які все тільки також дуже може коли вже є немає цей щоб при та про ще можна й її",
        "bg": "и в не на че с как това по но от за така са му към би или ако ние вие те тя той беше бъде който "
              "които всички само също много може когато вече е няма този да при до още се ще между през си съм",
        "sr": "и у не на да са како то по али из за је од се су га би или ако ми ви они она он био била бити који "
              "које сви само такође веома може када већ нема овај при до још ће што због након између врло",
    },
    "ARABIC": {
        "ar": "في من على إلى أن هذا هذه التي الذي ما لا هو هي كان كانت مع عن كل ذلك قد بين بعد أو ثم لم إذا حيث "
              "كما عند غير وهو وقد يمكن حتى أي بعض منذ لكن نحن",
        "fa": "و در به از که این را با است برای آن یک خود تا بر هم نیز می شود شد بود کرد ها های اگر اما یا هر چه "
              "ما شما باید کند دارد وی پس بین همه",
        "ur": "کے میں کی ہے اور سے کا کو پر نے کہ یہ ہیں تھا وہ بھی ایک اس ہو کر جو تو نہیں گیا تھے تھی کیا لئے "
              "لیے اپنے ہم آپ اگر یا بہت",
    },
}  # fmt: skip
#: All that can be guessed (ISO 639-1).
LANGUAGES = sorted({"zh", "ja", *ALONE.values(), *(language for group in WORDS.values() for language in group)})


def language_of(text: str) -> str | None:
    """One of `LANGUAGES`; None where a text is too short, in none of them, or between two.

    Blocks of code and addresses are left out. A script that several languages share without our lists for them is
    taken for its largest: Devanagari for Hindi, for instance.
    """
    plain = _CODE.sub(" ", text)[:_MOST_LETTERS]
    scripts = Counter(_script(letter) for letter in plain if letter.isalpha())
    if not scripts:
        return None
    script = max(scripts, key=lambda name: scripts[name] * _WEIGHTS.get(name, 1))
    if script in ("CJK", "HIRAGANA", "KATAKANA"):
        kana = scripts["HIRAGANA"] + scripts["KATAKANA"]
        return "ja" if 10 * kana > scripts["CJK"] else "zh"
    return _by_words(plain, script) if script in WORDS else ALONE.get(script)


@cache
def _script(letter: str) -> str:
    """The first word of its name in Unicode: LATIN, CYRILLIC, CJK and so on."""
    return unicodedata.name(letter, "?").split()[0]


def _by_words(text: str, script: str) -> str | None:
    """The language whose words are the largest share; a word of several languages counts for each in part."""
    scores, found = dict.fromkeys(WORDS[script], 0.0), words(text)
    for word in found:
        for language, weight in _weights(script).get(word, {}).items():
            scores[language] += weight
        for letter in set(word) & _rare(script).keys():
            for language in _rare(script)[letter]:
                scores[language] += _LETTER_WEIGHT / len(_rare(script)[letter])
    *_, second, best = sorted(scores, key=lambda language: scores[language])
    clear = scores[best] > _LEAST_LEAD * scores[second]
    return best if clear and scores[best] >= _LEAST_SCORE * len(found) else None


@cache
def _weights(script: str) -> dict[str, dict[str, float]]:
    owners: dict[str, list[str]] = {}
    for language, line in WORDS[script].items():
        for word in set(line.split()):
            owners.setdefault(word, []).append(language)
    return {word: {one: 1 / len(own) ** 0.5 for one in own} for word, own in owners.items()}


@cache
def _rare(script: str) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for language, letters in LETTERS[script].items():
        for letter in letters:
            owners.setdefault(letter, []).append(language)
    return owners
