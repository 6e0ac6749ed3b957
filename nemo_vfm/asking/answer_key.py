"""Names an answer by a hash of everything that it depends on."""

import json

from nemo_vfm.asking.question import Question
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.json_value import Json


def answer_key(identity: Json, question: Question) -> str:
    """64 hexadecimal digits: of model and sampling, messages, number of the sample, and version of the template.

    Args:
        identity: see `ChatModel.identity`; it may take time, so whoever has many questions asks for it once.
        question: with messages as they are sent.
    """
    if question.key:
        return question.key
    asked = [identity, question.built(), question.sample, question.template]
    return sha256_text(json.dumps(asked, sort_keys=True, allow_nan=False))
