"""The agent of guessing-program.yaml: a program with a loop of its own, which knows nothing of rljob."""

from __future__ import annotations

import json
import os
import urllib.request

TURNS = 4


def chat(messages: list[dict[str, str]]) -> str:
    """What the model says, as any client of OpenAI asks for it."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["RLJOB_MODEL"], "messages": messages}).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def play(messages: list[dict[str, str]], number: int) -> bool:
    """Whether the number was guessed."""
    for _ in range(TURNS):
        said = chat(messages)
        if not said.strip().isdecimal():
            return False
        if int(said) == number:
            return True
        answer = "higher" if number > int(said) else "lower"
        messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": answer}]
    return False


if __name__ == "__main__":
    with open(os.environ["RLJOB_TASK_FILE"]) as file:
        task = json.load(file)
    print(json.dumps({"reward": float(play(task["messages"], int(task["columns"]["number"])))}))
