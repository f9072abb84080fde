"""A worker process of `encoding`: reads batches of texts from stdin, writes encoded batches to stdout.

Owns: the loop, and a silent exit when the parent is gone. Does not own: encoding (`encoding.encode`).
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    # Ctrl-C is for the parent; process groups do not prevent it on every system.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Output of libraries must not mix with the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    from lilliput.data.prepare.encoding import encode, receive, send
    from lilliput.data.tokenizers import Tokenizer
    from lilliput.errors import UserError

    questions = sys.stdin.buffer
    try:
        tokenizer = Tokenizer.from_json(receive(questions))
        while True:
            texts = receive(questions)
            try:
                send(answers, tuple(encode(tokenizer, texts)))
            except UserError as error:
                send(answers, [error.what, error.where, error.fix, error.code, error.setting])
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the parent has finished or died: a normal exit would flush to a closed pipe


if __name__ == "__main__":
    main()
