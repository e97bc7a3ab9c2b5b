"""Ctrl-C is answered at once, also while compiled code runs, and a second one ends the program."""

import os
import signal
import subprocess
import sys
import time

import pytest

COMPILES = """
import hashlib
from minigrad.distributed.train.signals import interrupts
with interrupts() as received:
    print("ready", flush=True)
    for _ in range(3):
        hashlib.pbkdf2_hmac('sha256', b'', b'', 5_000_000)  # as a compiler: seconds without Python
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
@pytest.mark.long(but=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_answered_while_the_main_thread_is_in_compiled_code(number):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", COMPILES], **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        for answer in ("finishing this step, then saving (again: stop at once)", "stopping at once, without saving"):
            time.sleep(0.2)
            before = time.monotonic()
            process.send_signal(number)
            assert [process.stderr.readline() for _ in range(2)] == ["\n", answer + "\n"]
            assert time.monotonic() - before < 3.0
        assert process.wait(30) != 0 and "KeyboardInterrupt" in process.stderr.read()
