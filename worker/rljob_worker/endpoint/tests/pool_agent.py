"""An agent that takes one trajectory after another: how it does is its first argument."""

import json
import os
import signal
import sys
import urllib.request


def post(url, token, body):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
        return json.load(response) if response.status == 200 else None


def take():
    while (task := post(os.environ["RLJOB_ENDPOINT"] + "/task", os.environ["RLJOB_AGENT_TOKEN"], {})) is None:
        pass
    return task


def end(task, **result):
    post(os.environ["RLJOB_ENDPOINT"] + "/result", task["api_key"], result)


def play():
    """Two turns, and a reward."""
    task = take()
    messages = list(task["messages"])
    for more in ("more", None):
        body = {"model": task["model"], "messages": messages, "max_tokens": 2}
        said = post(task["base_url"] + "/chat/completions", task["api_key"], body)["choices"][0]["message"]
        messages += [said, {"role": "user", "content": more}]
    end(task, reward=0.5 + task["member"], metrics={"process": os.getpid() % 1000})


def main(how):
    if how == "play":
        while True:
            play()
    elif how == "once":
        play()
        sys.exit("that is enough")
    elif how == "error":
        end(take(), error="the tests did not run")
        signal.pause()
    elif how == "lost":
        take()
        signal.pause()
    elif how == "absent":
        sys.exit("no package")


if __name__ == "__main__":
    main(*sys.argv[1:])
