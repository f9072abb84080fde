"""One worker process of `encoding`: batches of texts come in on stdin, what they became goes out on stdout.

Owns: its loop, and that it ends silently when its parent is gone. Does not own: the work itself
(`encoding.encode`).
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    # Where process groups do not keep it away, Ctrl-C is for the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a library prints must not come between the answers.
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
        os._exit(0)  # the parent is done, or gone: flushing to it again would only complain


if __name__ == "__main__":
    main()
