"""A program that plays with an endpoint: how it does is its first argument."""

import json
import os
import sys
import time
import urllib.error
import urllib.request


def ask(messages, **fields):
    body = json.dumps({"model": os.environ["RLJOB_MODEL"], "messages": messages, "max_tokens": 2, **fields})
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        body.encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]


def play(prompt):
    """Two turns, and a reward."""
    with open(os.environ["RLJOB_TASK_FILE"]) as file:
        task = json.load(file)
    assert task["messages"][-1]["content"] == prompt and os.environ["MOOD"] == "good"
    messages = list(task["messages"])
    said = [ask(messages)]
    messages += [{"role": "assistant", "content": said[0]}, {"role": "user", "content": "more"}]
    said.append(ask(messages))
    print("words before")
    print(json.dumps({"reward": 0.5 * len(said), "metrics": {"letters": len("".join(said))}}))


def main(how, *arguments):
    if how == "play":
        play(*arguments)
    elif how == "endless":
        while True:
            time.sleep(1)
    elif how == "loud":
        sys.stdout.write("x" * 10_000_000)
    elif how == "silent":
        return
    elif how == "greedy":
        while True:
            ask([{"role": "user", "content": "again"}])
    elif how == "reaching":
        urllib.request.urlopen("http://127.0.0.1:" + arguments[0])
    elif how == "wrong":
        try:
            ask([{"role": "user", "content": "hi"}], n=2)
        except urllib.error.HTTPError as error:
            sys.exit(f"status {error.code}")
    elif how == "reward":
        ask([{"role": "user", "content": "hi"}])
        print(arguments[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
