# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Names an answer by a hash of everything that it depends on."""

import json

from nemo_vfm.asking.question import ChatModel, Question
from nemo_vfm.core.storage.files import sha256_text


def answer_key(chat: ChatModel, question: Question) -> str:
    """64 hexadecimal digits: of model and sampling, messages, number of the sample, and version of the template."""
    if question.key:
        return question.key
    asked = [chat.identity(), question.built(), question.sample, question.template]
    return sha256_text(json.dumps(asked, sort_keys=True, allow_nan=False))
