"""Signals to this process."""

import signal
import threading

import pytest

from bert_jax.training.preemption import PreemptionGuard


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_requests_a_stop_and_handlers_are_restored(number):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with PreemptionGuard() as guard:
        assert not guard.poll() and guard.signal_name == ""
        signal.raise_signal(number)
        assert guard.poll() and guard.signal_name == number.name
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_second_ctrl_c_ends_the_process_but_a_second_sigterm_does_not():
    with PreemptionGuard():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_another_thread_trains_without_handlers():
    noted = []

    def work():
        with PreemptionGuard() as guard:
            noted.append(guard.requested)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert noted == [False] and signal.getsignal(signal.SIGTERM) is before
