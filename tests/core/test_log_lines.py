import os

from t5x_lite.core.signals import quiet_import, without_log_lines


def test_only_log_lines_are_held_back(capfd):
    with without_log_lines():
        os.write(2, b"I0000 00:00:1795227168.411473 13843 port.cc:153] oneDNN\nTraceback: why\n")
    assert capfd.readouterr().err == "Traceback: why\n"


def test_an_import_that_may_be_tensorflow_s_sets_its_level(monkeypatch):
    for before, after in [("1", "3"), ("0", "0"), ("2", "2")]:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", before)
        with quiet_import():
            assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == after
