"""Tests that token batches follow from seed and number, hold every token once an epoch, and shift labels by one."""

import inspect
import itertools
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.sample_batches import TokenBatch
from nemo_vfm.core.types.training_data import HasBatchSizes, TrainingData
from nemo_vfm.data.loader.scheduled_data import ScheduledData
from nemo_vfm.data.tokenizers.byte_tokenizer import ByteTokenizer
from nemo_vfm.data.tokens import token_rows
from nemo_vfm.data.tokens.token_data import TokenData, TokenSource
from nemo_vfm.data.tokens.token_manifest import TokenFolder
from nemo_vfm.data.tokens.token_stream import TokenStream
from nemo_vfm.data.tokens.token_writer import write_tokens
from tests.data.tokens.conftest import lengths, numbered

END = 99_999


def data_of(folder: Path, *, weight: float | None = None, **settings) -> TokenData:
    return TokenData(
        sources={"text": TokenSource(folder, weight)}, **{"sequence_length": 16, "batch_size": 4, **settings}
    )


def batches(data: TokenData, count: int, **where) -> list[Batch]:
    data.start(**{"seed": 5, "first_batch": 0, **where})
    return list(itertools.islice(data.train_dataloader(), count))


def same(one: Batch, other: Batch) -> bool:
    return (
        one.keys == other.keys
        and one.documents == other.documents
        and torch.equal(one.tokens_BS, other.tokens_BS)
        and torch.equal(one.labels_BS, other.labels_BS)
    )


def stream_of(sizes: list[int]) -> list[int]:
    """What the folder holds, in its order."""
    return [token for document in numbered(sizes) for token in [*document, END]]


def test_it_is_what_training_and_blends_ask_for(token_folder):
    data = data_of(token_folder(lengths(60)))
    assert isinstance(data, TrainingData) and isinstance(data, HasBatchSizes) and isinstance(data, ScheduledData)
    (batch,) = batches(data, 1)
    assert batch.tokens_BS.dtype == batch.labels_BS.dtype == torch.int64 and batch.tokens_BS.is_contiguous()
    assert isinstance(batch, TokenBatch) and batch.weight_B.tolist() == [1.0] * 4
    assert len(set(batch.keys)) == len(batch) == 4


@pytest.mark.parametrize("packing", ["stream", "documents"])
def test_a_batch_depends_on_the_seed_and_its_number_alone(token_folder, packing):
    folder = token_folder(lengths(300))
    whole = batches(data_of(folder, packing=packing), 40)
    for first in (1, 17, 39):
        (found,) = batches(data_of(folder, packing=packing, num_workers=first % 3), 1, first_batch=first)
        assert found.index == first and same(found, whole[first])
    assert not same(batches(data_of(folder, packing=packing), 1, seed=6)[0], whole[0])


@pytest.mark.parametrize("packing", ["stream", "documents"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_get_slices_of_the_same_global_batch(token_folder, packing, num_ranks):
    folder = token_folder(lengths(300))
    whole = batches(data_of(folder, packing=packing), 9)
    for rank in range(num_ranks):
        share = 4 // num_ranks
        for number, part in enumerate(batches(data_of(folder, packing=packing), 9, rank=rank, num_ranks=num_ranks)):
            ours = slice(rank * share, (rank + 1) * share)
            assert torch.equal(part.tokens_BS, whole[number].tokens_BS[ours])
            assert part.keys == whole[number].keys[ours] and part.documents == whole[number].documents[ours]


@pytest.mark.parametrize("packing", ["stream", "documents"])
def test_every_token_comes_once_an_epoch(token_folder, packing):
    sizes = lengths(290)
    sizes.append(-(sum(sizes) + len(sizes) + 1) % (16 * 4 * 32) or 16 * 4 * 32)  # windows end where the epoch does
    data, stream = data_of(token_folder(sizes), packing=packing), stream_of(sizes)
    data.start(seed=5, first_batch=0)
    epoch = int(data.batches_per_epoch())
    assert epoch == len(stream) / 64
    found = batches(data, 2 * epoch)
    for half in (found[:epoch], found[epoch:]):
        assert Counter(torch.cat([batch.tokens_BS for batch in half]).ravel().tolist()) == Counter(stream)
    assert not same(found[0], found[epoch])


def test_in_a_stream_the_label_is_the_token_after(token_folder):
    sizes = lengths(200)
    stream = stream_of(sizes)
    place = {token: at for at, token in enumerate(stream) if token != END}
    for batch in batches(data_of(token_folder(sizes)), 60):
        assert batch.documents == () and torch.equal(batch.tokens_BS[:, 1:], batch.labels_BS[:, :-1])
        for tokens, labels in zip(batch.tokens_BS.tolist(), batch.labels_BS.tolist(), strict=True):
            at, token = next((at, token) for at, token in enumerate(tokens) if token != END)
            begin = place[token] - at
            assert [stream[(begin + n) % len(stream)] for n in range(17)] == [*tokens, labels[-1]]


def test_packed_documents_are_parts_of_one_document_each_and_learn_nothing_beyond_its_end(token_folder):
    sizes = lengths(300)
    documents = [[*document, END] for document in numbered(sizes)]
    place = {token: (which, at) for which, document in enumerate(documents) for at, token in enumerate(document[:-1])}
    whole = 0
    for batch in batches(data_of(token_folder(sizes), packing="documents"), 120):
        for tokens, labels, parts in zip(
            batch.tokens_BS.tolist(), batch.labels_BS.tolist(), batch.documents, strict=True
        ):
            assert sum(parts) == 16 and min(parts) >= 1
            for length, stop in zip(parts, itertools.accumulate(parts), strict=True):
                part, after = tokens[stop - length : stop], labels[stop - length : stop]
                if part[0] == END:  # an empty document, or the end of one that was cut before it
                    assert (part, after) == ([END], [-100])
                    continue
                which, at = place[part[0]]
                document = documents[which]
                assert part == document[at : at + length]
                assert after == [*document[at + 1 : at + length + 1], *[-100] * (at + length == len(document))]
                whole += length == len(document)
    assert whole > 300


def test_documents_that_fit_are_mostly_whole(token_folder):
    sizes = lengths(2500, longest=60)
    data = data_of(token_folder(sizes, per_shard=2500), packing="documents", sequence_length=128)
    data.start(seed=5, first_batch=0)
    found = batches(data, int(data.batches_per_epoch()))
    parts = sum(len(row) for batch in found for row in batch.documents)
    assert parts / (int(data.batches_per_epoch()) * 4 * 128 / (sum(sizes) / len(sizes) + 1)) < 1.05


@pytest.fixture(params=[token_rows.WINDOW, 5], ids="windows of {} rows".format)
def window(request, monkeypatch):
    """As many rows are packed together, or so few that a small folder has many windows."""
    monkeypatch.setattr(token_rows, "WINDOW", request.param)


def test_what_is_held_out_is_never_trained_on_and_nothing_is_lost(token_folder, window):
    sizes = lengths(400)
    folder = token_folder(sizes)
    for packing in ("stream", "documents"):
        data = data_of(folder, packing=packing, val_fraction=0.2)
        data.start(seed=5, first_batch=0)
        trained = {t for b in batches(data, 2 * int(data.batches_per_epoch())) for t in b.tokens_BS.ravel().tolist()}
        held = [t for b in data.val_dataloader() for t in b.tokens_BS.ravel().tolist() if t != END]
        assert not trained & set(held) and len(held) == len(set(held))
        assert (trained | set(held)) - {END} == set(stream_of(sizes)) - {END}
        assert 0.1 < len(held) / sum(sizes) < 0.3


def test_held_out_rows_label_each_token_once_and_are_filled_with_nothing_to_learn(token_folder, window):
    folder = token_folder(lengths(400))
    for packing in ("stream", "documents"):
        data = data_of(folder, packing=packing, val_fraction=0.2)
        data.start(seed=5, first_batch=3, rank=1, num_ranks=2)
        found, again = list(data.val_dataloader()), list(data.val_dataloader())
        assert all(same(one, two) for one, two in zip(found, again, strict=True))
        assert [batch.index for batch in found] == list(range(len(found)))
        stream = TokenStream(TokenFolder(folder), val_fraction=0.2, held_out=True)
        labelled = sum(int((batch.labels_BS != -100).sum()) for batch in found)
        without = 1 if packing == "stream" else stream.num_documents
        assert labelled == stream.num_tokens - without
        assert all(sum(row) == 16 for batch in found for row in batch.documents)


def test_copies_of_a_document_are_on_one_side(tmp_path):
    documents = [[number % 50, number % 50] for number in range(400)]
    write_tokens(tmp_path / "a", documents, vocab_size=60, end=59, tokenizer="t", per_shard=7)
    sides = [TokenStream(TokenFolder(tmp_path / "a"), val_fraction=0.3, held_out=side) for side in (False, True)]
    seen = []
    for side in sides:
        out = np.empty(side.num_tokens, np.int64)
        side.read(0, out)
        seen.append(set(out.tolist()) - {59})
    assert not seen[0] & seen[1] and seen[0] | seen[1] == set(range(50)) and len(seen[1]) > 3


def blended(token_folder, weights: dict[str, float | None], **settings) -> TokenData:
    sizes = {"web": 300, "books": 100, "code": 40}
    sources = {n: TokenSource(token_folder(lengths(sizes[n], 3), name=n), w) for n, w in weights.items()}
    return TokenData(sources=sources, **{"sequence_length": 16, "batch_size": 4, **settings})


def sources_of(found: list[Batch]) -> list[str]:
    return [key.rsplit("-", 1)[0] for batch in found for key in batch.keys]


def test_any_prefix_has_the_weights_within_one_row(token_folder):
    weights = {"web": 0.62, "books": 0.3, "code": 0.08}
    names = sources_of(batches(blended(token_folder, weights), 250))
    for name, weight in weights.items():
        counts = np.cumsum([one == name for one in names])
        assert np.abs(counts - weight * np.arange(1, len(names) + 1)).max() < 1


def test_without_weights_all_sources_are_through_together(token_folder):
    data = blended(token_folder, {"web": None, "books": None, "code": None})
    data.start(seed=0, first_batch=0)
    read = data.read_after(5000, seed=0)
    epochs = {n: read[n] * 16 / count for n, count in data.by_number().schedule.num_tokens.items()}
    assert max(epochs.values()) / min(epochs.values()) < 1.01


def test_weights_may_count_documents(token_folder):
    folders = {n: token_folder([size] * 60, name=n) for n, size in (("short", 9), ("long", 39))}
    sources = {name: TokenSource(folder, 1.0) for name, folder in folders.items()}
    names = [
        Counter(sources_of(batches(TokenData(sources=sources, sequence_length=16, batch_size=4, weigh=weigh), 50)))
        for weigh in ("tokens", "documents")
    ]
    assert names[0] == {"short": 100, "long": 100} and names[1] == {"short": 40, "long": 160}


def test_a_sources_own_rows_do_not_depend_on_the_others(token_folder):
    alone, mixed = (
        {
            key: row
            for b in batches(blended(token_folder, weights), 40)
            for key, row in zip(b.keys, b.tokens_BS.tolist(), strict=True)
        }
        for weights in ({"books": 1.0}, {"web": 0.5, "books": 0.3, "code": 0.2})
    )
    shared = alone.keys() & mixed.keys()
    assert len(shared) > 40 and all(alone[key] == mixed[key] for key in shared)


def test_a_second_part_with_other_weights_takes_every_source_up_where_the_first_left_it(token_folder):
    first = blended(token_folder, {"web": 0.5, "books": 0.3, "code": 0.2})
    keys = [key for batch in batches(first, 15) for key in batch.keys]
    second = first.in_phase(batch_size=8, blend={"web": 0.1, "code": 0.9}, read=first.read_after(15, seed=0))
    keys += [key for batch in batches(second, 20) for key in batch.keys]
    third = first.in_phase(batch_size=None, blend=None, read=second.read_after(20, seed=0))
    keys += [key for batch in batches(third, 10) for key in batch.keys]
    for name in ("web", "books", "code"):
        numbers = [int(key.rsplit("-", 1)[1]) for key in keys if key.startswith(name)]
        assert numbers == list(range(len(numbers)))
    with pytest.raises(ValueError, match="maps is not a source of this data: web, books, code"):
        first.in_phase(batch_size=None, blend={"maps": 1.0}, read={})


def test_a_part_keeps_every_setting_that_it_does_not_name(token_folder):
    settings = {
        "sequence_length": 8, "packing": "documents", "weigh": "documents", "val_fraction": 0.2, "shuffle": False,
        "num_workers": 2, "verify": True, "tokenizer": ByteTokenizer(),
    }  # fmt: skip
    assert settings.keys() | {"sources", "batch_size"} == inspect.signature(TokenData).parameters.keys()
    data = data_of(token_folder(lengths(60)), weight=1.0, **settings)
    for part in (data.in_phase(batch_size=8, blend={"text": 2.0}, read={}), data.with_batching(data.batching())):
        assert {name: getattr(part, name) for name in settings} == settings


def test_damage_in_any_of_the_sources_is_found_at_the_start_where_they_are_verified(token_folder):
    folders = {name: token_folder(lengths(60), name=name) for name in ("web", "books", "code")}
    path = folders["code"] / "shard-000001.tokens"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    for verify in (False, True):
        sources = {name: TokenSource(folder) for name, folder in folders.items()}
        data = TokenData(sources=sources, sequence_length=16, batch_size=4, verify=verify)
        if not verify:
            data.start(seed=5, first_batch=0)
            continue
        with pytest.raises(DataError, match=r"code/shard-000001.tokens does not match its checksum"):
            data.start(seed=5, first_batch=0)


def test_tokens_that_were_made_anew_are_another_order_and_a_copy_elsewhere_is_the_same(tmp_path):
    orders = []
    for name, shift in (("one", 0), ("copy", 0), ("anew", 1)):
        documents = [[number % 50 + shift] * 9 for number in range(40)]
        write_tokens(tmp_path / name, documents, vocab_size=60, end=59, tokenizer="t", per_shard=7)
        data = data_of(tmp_path / name)
        data.start(seed=5, first_batch=0)
        orders.append(data.position(0)["text"].order)
    assert orders[0] == orders[1] != orders[2]


def test_reading_ahead_changes_nothing_and_batches_may_be_sent_to_another_process(token_folder):
    folder = token_folder(lengths(200))
    for packing in ("stream", "documents"):
        data = data_of(folder, packing=packing, val_fraction=0.1)
        plain = batches(data, 30)
        ahead = batches(data_of(folder, packing=packing, val_fraction=0.1, num_workers=2), 30)
        assert all(same(one, two) for one, two in zip(plain, ahead, strict=True))
        sent = pickle.loads(pickle.dumps(data.by_number()))
        assert same(sent[17][0], plain[17])


def test_what_cannot_be_is_said_with_its_numbers(token_folder):
    folder = token_folder([5, 5])
    with pytest.raises(UserError, match="12 tokens to train on, fewer than one sequence of 16"):
        batches(data_of(folder), 1)
    with pytest.raises(UserError, match="batch_size 4 is not divisible by 3 ranks"):
        batches(data_of(folder, sequence_length=4), 1, num_ranks=3)
    with pytest.raises(ValueError, match="for every source or for none"):
        TokenData(sources={"a": TokenSource(folder, 1.0), "b": TokenSource(folder)}, sequence_length=4, batch_size=4)
    with pytest.raises(ValueError, match="weight of source text is -1"):
        data_of(folder, weight=-1.0)
    with pytest.raises(UserError, match="before start"):
        data_of(folder).train_dataloader()
    other = token_folder([5, 5], name="other", tokenizer="u" * 64)
    two = TokenData(sources={"text": TokenSource(folder), "other": TokenSource(other)}, sequence_length=4, batch_size=4)
    with pytest.raises(UserError, match="tokenize all sources with the model's"):
        two.start(seed=0, first_batch=0)
