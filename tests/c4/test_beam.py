"""C4 on Beam: the bytes and the counts of the local driver, on every runner that there is here."""

import dataclasses
import json
from pathlib import Path

import pytest

from t5x_lite.c4 import local
from t5x_lite.c4.config import Cleaning, preset
from t5x_lite.c4.pages import Tally, expand_inputs
from t5x_lite.core.errors import InputError
from tests.c4.made_up_crawl import BAD_WORDS, write_crawl
from tests.c4.wet_files import members, wet_record
from tests.data.beam_service import job_service, run_python
from tests.fake_bucket import bucket  # noqa: F401

pytest.importorskip("apache_beam")


@pytest.fixture(scope="module")
def crawl(tmp_path_factory, english_lines):
    """A directory with three WET files and a list of bad words."""
    directory = tmp_path_factory.mktemp("crawl")
    write_crawl(directory, english_lines, pages=90)
    (directory / "bad.txt").write_text(BAD_WORDS)
    return directory


def rules(crawl, name="released", variant="en", **changes) -> Cleaning:
    return dataclasses.replace(preset(name, variant), bad_words=str(crawl / "bad.txt"), **changes)


def files(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(output.iterdir())}


def beam_run(crawl, output, cleaning, *, runner="FnApiRunner", options=(), **kwargs) -> Tally:
    from t5x_lite.c4 import beam

    inputs = expand_inputs([str(crawl)])
    return beam.run(
        inputs, str(output), cleaning, runner=runner, options=options, num_shards=3, **kwargs
    )


@pytest.fixture(scope="module")
def by_local(crawl, tmp_path_factory):
    """The local driver's output and tally for rules."""
    found = {}

    def make(cleaning):
        if cleaning not in found:
            output = tmp_path_factory.mktemp("local") / "out"
            tally = local.run(
                expand_inputs([str(crawl)]), output, cleaning, workers=1, num_shards=3
            )
            found[cleaning] = files(output), tally.to_json()
        return found[cleaning]

    return make


@pytest.mark.gate("released-en-changes0")
@pytest.mark.parametrize(
    ("name", "variant", "changes"),
    [
        ("released", "en", {}),
        ("paper", "en", {"languages": ()}),  # langdetect is most of the time
        ("released", "en.noclean", {"languages": ()}),
    ],
)
@pytest.mark.slow
def test_shards_manifest_and_tally_are_those_of_the_local_driver(
    crawl, by_local, tmp_path, name, variant, changes
):
    cleaning = rules(crawl, name, variant, **changes)
    told = []
    tally = beam_run(crawl, tmp_path / "out", cleaning, report=told.append)
    shards, counts = by_local(cleaning)
    assert tally.to_json() == counts
    assert files(tmp_path / "out") == shards
    assert told == [tally]
    assert tally.splits["train"]["pages"] > 10


@pytest.mark.slow
def test_bundles_that_are_run_twice_count_once(crawl, by_local, tmp_path):
    cleaning = rules(crawl, languages=())
    options = ["--direct_runner_bundle_repeat=1"]
    tally = beam_run(crawl, tmp_path / "out", cleaning, options=options)
    shards, counts = by_local(cleaning)
    assert (files(tmp_path / "out"), tally.to_json()) == (shards, counts)


@pytest.mark.exhaustive
def test_pages_that_are_equal_in_everything(tmp_path):
    """Without deduplication by URL, one of them keeps its spans; the others lose all."""
    text = "\n".join(f"Sentence number {number} of this page it is." for number in range(6))
    record = wet_record("http://a.example/", text)
    (tmp_path / "crawl").mkdir()
    for name in "ab":
        (tmp_path / "crawl" / f"{name}.wet.gz").write_bytes(members(record, record))
    cleaning = preset("paper")
    tally = beam_run(tmp_path / "crawl", tmp_path / "beam", cleaning)
    inputs = expand_inputs([str(tmp_path / "crawl")])
    expected = local.run(inputs, tmp_path / "local", cleaning, workers=1, num_shards=3)
    assert tally.to_json() == expected.to_json()
    assert files(tmp_path / "beam") == files(tmp_path / "local")
    assert tally.splits["train"]["pages"] == 1


@pytest.mark.usefixtures("bucket")
@pytest.mark.slow
def test_an_output_in_a_bucket(crawl, by_local, bucket):  # noqa: F811
    cleaning = rules(crawl, languages=())
    beam_run(crawl, "gs://bucket/c4", cleaning)
    assert files(bucket / "c4") == by_local(cleaning)[0]


@pytest.mark.slow
def test_the_same_run_again_does_nothing_and_another_is_refused(crawl, tmp_path, monkeypatch):
    cleaning = rules(crawl, languages=())
    first = beam_run(crawl, tmp_path / "out", cleaning)
    before = files(tmp_path / "out")
    monkeypatch.setattr("t5x_lite.c4.beam.build", None)
    again = beam_run(crawl, tmp_path / "out", cleaning)
    assert again.splits == first.splits
    assert files(tmp_path / "out") == before
    with pytest.raises(InputError, match=r"min_words was 5, but cleaning\.min_words is now 7"):
        beam_run(crawl, tmp_path / "out", dataclasses.replace(cleaning, min_words=7))


@pytest.mark.slow
def test_a_job_that_ended_while_nobody_waited_is_finished(crawl, by_local, tmp_path, monkeypatch):
    from t5x_lite.c4 import beam, cluster

    cleaning = rules(crawl, languages=())

    def killed(tally):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        beam_run(crawl, tmp_path / "out", cleaning, report=killed)
    assert (tmp_path / "out" / ".work" / cluster.RESULT).exists()
    monkeypatch.setattr(beam, "build", None)
    beam_run(crawl, tmp_path / "out", cleaning)
    assert files(tmp_path / "out") == by_local(cleaning)[0]


@pytest.mark.exhaustive
def test_an_input_that_vanished_is_named(crawl, tmp_path):
    gone = dataclasses.replace(expand_inputs([str(crawl)])[0], path=str(tmp_path / "gone.wet"))
    from t5x_lite.c4 import beam

    with pytest.raises(Exception, match=r"gone\.wet"):
        beam.run([gone], str(tmp_path / "out"), Cleaning(), runner="FnApiRunner")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_pipeline_and_the_options_of_dataflow(crawl, tmp_path):
    """What would be submitted: nothing of this machine but paths that were given as such."""
    import apache_beam
    from apache_beam.options import pipeline_options as options
    from apache_beam.portability import common_urns

    from t5x_lite.c4.beam import build
    from t5x_lite.core.beam import pipeline_options

    found = pipeline_options(
        "DirectRunner",  # DataflowRunner itself is of the extra apache-beam[gcp]
        [
            "--project=a-project",
            "--region=europe-west4",
            "--temp_location=gs://bucket/tmp",
            "--max_num_workers=50",
            "--experiments=use_runner_v2,shuffle_mode=service",
            "--sdk_container_image=europe-docker.pkg.dev/a-project/c4:1",
        ],
    )
    cloud = found.view_as(options.GoogleCloudOptions)
    assert (cloud.project, cloud.region) == ("a-project", "europe-west4")
    assert cloud.temp_location == "gs://bucket/tmp"
    assert found.view_as(options.WorkerOptions).max_num_workers == 50
    assert "use_runner_v2" in found.view_as(options.DebugOptions).experiments
    pipeline = apache_beam.Pipeline(options=found)
    build(
        pipeline,
        ["gs://bucket/a.wet.gz"],
        rules(crawl),
        output="gs://bucket/c4",
        result="gs://bucket/c4/.work/result.json",
        num_shards=1024,
    )
    proto = pipeline.to_runner_api()
    urns = [transform.spec.urn for transform in proto.components.transforms.values()]
    grouped = urns.count(common_urns.primitives.GROUP_BY_KEY.urn)
    # URL, key, page, shard, domain, group of domains, tally, result; and the reshuffle of files.
    assert grouped == 9
    assert len(proto.SerializeToString()) < 1_000_000  # Dataflow refuses 10 MB
    side_inputs = [
        name
        for name, transform in proto.components.transforms.items()
        if transform.spec.urn == common_urns.primitives.PAR_DO.urn and len(transform.inputs) > 1
    ]
    assert side_inputs == []


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_worker_processes_on_the_portable_job_service(crawl, by_local, tmp_path):
    cleaning = rules(crawl)
    with job_service(tmp_path) as options:
        script = _SCRIPT.format(
            crawl=str(crawl),
            output=str(tmp_path / "out"),
            bad_words=cleaning.bad_words,
            runner="PortableRunner",
            options=options,
        )
        told = run_python(script)
    shards, counts = by_local(cleaning)
    assert files(tmp_path / "out") == shards
    assert json.loads((tmp_path / "tally.json").read_text()) == counts
    assert told.count("Starting worker with command") == 2


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_dask_cluster(crawl, by_local, tmp_path):
    pytest.importorskip("distributed")
    cleaning = rules(crawl)
    script = _DASK + _SCRIPT.format(
        crawl=str(crawl),
        output=str(tmp_path / "out"),
        bad_words=cleaning.bad_words,
        runner="DaskRunner",
        options=["--dask_npartitions=3"],
    ).replace(
        "options=[", "options=['--dask_client_address=' + cluster.scheduler_address, "
    ).replace("\n", "\n    ")
    run_python(script)
    shards, counts = by_local(cleaning)
    assert files(tmp_path / "out") == shards
    assert json.loads((tmp_path / "tally.json").read_text()) == counts


_SCRIPT = """
import dataclasses, json, pathlib
from t5x_lite.c4 import beam
from t5x_lite.c4.config import preset
from t5x_lite.c4.pages import expand_inputs
output = {output!r}
tally = beam.run(
    expand_inputs([{crawl!r}]), output, dataclasses.replace(preset(), bad_words={bad_words!r}),
    runner={runner!r}, options={options!r}, num_shards=3)
pathlib.Path(output).with_name("tally.json").write_text(json.dumps(tally.to_json()))
"""
_DASK = """
import distributed
if __name__ == "__main__":
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
"""
