"""The console script, as a person uses it."""

import itertools
import json
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from cluster import cli, variants, yaml12
from cluster.config import load_config
from cluster.experiment import Experiment
from cluster.progress import size
from raysim.algorithms import ALGORITHMS
from raysim.data import PARTITIONERS, SOURCES
from raysim.models import MODELS
from raysim.problems import PROBLEMS
from server.ledger import METRICS, PARTICIPATION, ROUNDS
from tests.same import differences, log, tables

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")
SCRIPT = str(Path(sys.executable).with_name("raysim"))
RULER = """\
name: ruler
rounds: 4
data: {name: quadratic, clients: 8}
partition: {name: natural}
problem: {name: quadratic}
algorithm: {name: parallel_sgda, S: 4, eta: 0.05, gamma: 0.05}
evaluate: {every: 2}
clients: {fleet: in_process}
"""


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


Raysim = Callable[..., Outcome]


@pytest.fixture
def raysim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Raysim:
    """The console script in this process: its words -> what it did."""

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["raysim", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Outcome(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Ray in this process, as in a script's, whatever other tests have started."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)


@pytest.fixture
def ruler(tmp_path: Path) -> str:
    """A configuration without a test split that runs in a moment."""
    path = tmp_path / "ruler.yaml"
    path.write_text(RULER + f"output: {{folder: {tmp_path / 'runs'}}}\n")
    return str(path)


def folders(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "runs").iterdir())


def test_run_prints_rounds_metrics_and_files(raysim: Raysim, tmp_path: Path) -> None:
    done = raysim(
        "run", QUICKSTART, "-o", "rounds=4", "--override", "evaluate.every=3", "-o", "clients.fleet=in_process",
        "-o", f"output.folder={tmp_path / 'runs'}",
    )  # fmt: skip
    assert (done.status, done.err) == (0, "")
    (folder,) = folders(tmp_path)
    lines = done.out.splitlines()
    assert lines[0] == f"quickstart: 100 clients, results in {folder}"
    assert [re.split(r"  +", line)[0] for line in lines[1:4]] == ["round 0/4", "round 3/4", "round 4/4"]
    summary = json.loads((folder / "summary.json").read_text())
    assert f"  {size(summary['bytes_up'])} up, {size(summary['bytes_down'])} down  " in lines[3]
    finals = {
        (row["split"], row["metric"]): row["value"] for row in pq.read_table(folder / "metrics.parquet").to_pylist()
    }
    assert lines[4:6] == [
        f"final train auc: {finals['train', 'auc']:.4f}",
        f"final test auc: {finals['test', 'auc']:.4f}",
    ]
    assert re.match(r"moved .* clients took part, Gini 0\.\d\d$", lines[6])
    assert re.match(r"simulated 0\.\d+ h, .* late, .* dropped; wasted .* 0 failed rounds$", lines[7])
    assert re.match(r"accepted, from the fastest to the slowest quarter of the devices: [\d.]+ / .* %\)$", lines[8])
    assert lines[9:11] == ["test auc 0.95 was not reached", f"results in {folder}"]
    assert [line.strip() for line in lines[11:]] == [
        "config.yaml", "curves.parquet", "environment.json", "log.jsonl", "metrics.parquet", "model.pt",
        "participation.parquet", "plots/auc_bytes_up.png", "plots/auc_round.png", "plots/auc_sim_s.png",
        "plots/fates.png", "plots/participation.png", "plots/roc.png", "rounds.parquet", "summary.json",
    ]  # fmt: skip
    there = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    assert sorted(str(p) for p in there if p.parts[0] != "checkpoints") == [line.strip() for line in lines[11:]]
    check_folder(folder)


def check_folder(folder: Path) -> None:
    """Everything a run of the quickstart leaves is what it is said to be."""
    resolved = yaml12.parse((folder / "config.yaml").read_text())
    assert (resolved["rounds"], resolved["evaluate"]["every"]) == (4, 3)
    assert Experiment.build(load_config(folder / "config.yaml")).resolved == resolved
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["packages"]["torch"] == version("torch")
    assert environment["packages"]["raysim"] == version("raysim")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    assert (environment["commit"] or "").removesuffix(" (with changes)") == head
    tables = {name: pq.read_table(folder / f"{name}.parquet") for name in ("rounds", "participation", "metrics")}
    assert {name: table.column_names for name, table in tables.items()} == {
        "rounds": ROUNDS.names,
        "participation": PARTICIPATION.names,
        "metrics": METRICS.names,
    }
    assert {name: len(table) for name, table in tables.items()} == {
        "rounds": 4 * 2, "participation": 4 * 2 * 10, "metrics": 3 * 2 * 3,
    }  # fmt: skip
    model = torch.load(folder / "model.pt", weights_only=True)
    assert sum(part.numel() for part in model.values()) == 4813
    for path in (folder / "plots").iterdir():
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert len(set(image.convert("L").tobytes())) > 2, "something is drawn"


def test_a_run_without_test_rows_reports_what_there_is(raysim: Raysim, ruler: str, tmp_path: Path) -> None:
    done = raysim("run", ruler)
    assert (done.status, done.err) == (0, "")
    (folder,) = folders(tmp_path)
    assert len(re.findall(r"^round \d/4  train gradient_norm \d", done.out, re.MULTILINE)) == 3
    assert len(re.findall(r"^final train gradient_norm: \d", done.out, re.MULTILINE)) == 1
    assert "test" not in done.out.replace(str(folder), "")
    assert set(pq.read_table(folder / "metrics.parquet")["split"].to_pylist()) == {"train"}


def test_a_run_with_nothing_to_evaluate_ends_well(raysim: Raysim, ruler: str, tmp_path: Path) -> None:
    done = raysim("run", ruler, "-o", "evaluate.splits=[test]")
    assert (done.status, done.err) == (0, "")
    assert "final" not in done.out
    (folder,) = folders(tmp_path)
    assert len(pq.read_table(folder / "metrics.parquet")) == 0
    assert not (folder / "plots").exists()


def test_runs_of_the_same_second_have_folders_of_their_own(raysim: Raysim, ruler: str, tmp_path: Path) -> None:
    for seed in range(3):
        assert raysim("run", ruler, "-o", "rounds=1", "-o", f"seed={seed}").status == 0
    seeds = [yaml12.parse((folder / "config.yaml").read_text())["seed"] for folder in folders(tmp_path)]
    assert sorted(seeds) == [0, 1, 2]
    for folder in folders(tmp_path):
        assert re.fullmatch(r"ruler-\d{8}-\d{6}(-\d)?", folder.name)


def test_plot_draws_runs_that_were_made(raysim: Raysim, ruler: str, tmp_path: Path) -> None:
    for seed in range(2):
        raysim("run", ruler, "-o", f"seed={seed}")
    out = tmp_path / "both.png"
    done = raysim("plot", *map(str, folders(tmp_path)), "--out", str(out))
    assert done == (0, f"wrote {out}\n", "")
    with Image.open(out) as image:
        assert image.format == "PNG"


@pytest.mark.usefixtures("alone")
def test_check_prints_shards_sizes_and_bytes(raysim: Raysim) -> None:
    done = raysim("check", QUICKSTART, "-o", "rounds=100")
    assert (done.status, done.err) == (0, "")
    config, plan = done.out.split("\n\n")
    assert yaml12.parse(config)["partition"] == {"name": "by_label", "clients": 100, "test_fraction": None}
    assert [re.sub(r" +", " ", line) for line in plan.splitlines()[:-1]] == [
        "clients 100: 14 / 14 / 15 rows (min / median / max), 0 empty, 92 with a single class",
        "rows 1438 train, 359 test",
        "floats |x| = 4,812, |y| = 1",
        "phase collect: 10 clients, 193 kB down, 193 kB up",
        "phase update: 10 clients, 385 kB down, 193 kB up",
        f"a round 578 kB down, 385 kB up ({3 * 10 * 4813 * 4:,} and {2 * 10 * 4813 * 4:,} bytes)",
        "100 rounds 57.8 MB down, 38.5 MB up",
    ]
    assert re.fullmatch(
        r"actors +\d+, each for any client: \d+ MB of memory wanted, [\d.]+ [MGT]B available", plan.splitlines()[-1]
    )


def test_check_counts_empty_clients(raysim: Raysim) -> None:
    # 1438 rows over 2000 clients: one each, and 562 without
    done = raysim("check", QUICKSTART, "-o", "partition={name: iid, clients: 2000}", "-o", "clients.fleet=in_process")
    assert "2000: 0 / 1 / 1 rows (min / median / max), 562 empty, 1438 with a single class" in done.out
    assert "none, all clients in this process" in done.out


@pytest.mark.usefixtures("alone")
def test_check_refuses_what_a_run_would(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("check", QUICKSTART, "-o", "clients.per_actor=1", "-o", "clients.num_cpus=1000")
    done = raysim(*words)
    assert done.status == 2
    assert re.match(r"error: 100 client actors x 1000 CPU = 100000 CPU, but there (is|are) \d+: lower ", done.err)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # another machine's resources are not this one's
    done = raysim(*words)
    assert done.status == 0
    assert "actors       decided by what the cluster at 10.0.0.1:6379 has" in done.out


@pytest.mark.slow
@pytest.mark.ray
def test_check_counts_on_the_ray_of_this_process(raysim: Raysim, ray_cluster: None) -> None:
    done = raysim("check", QUICKSTART, "-o", "clients.per_actor=1", "-o", "clients.num_cpus=1000")
    assert re.search(r"^actors       decided by what the cluster at [\d.]+:\d+ has$", done.out, re.MULTILINE)


def test_list_shows_every_name_and_what_it_is(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = raysim("list")
    assert (done.status, done.err) == (0, "")
    lines = [re.split(r"  +", line.strip(), maxsplit=1) for line in done.out.splitlines()]
    for registry in (ALGORITHMS, PROBLEMS, MODELS, SOURCES, PARTITIONERS):
        assert [registry.kind] in lines
        for name, summary in registry.lines():
            assert len(summary) > 10
            assert [name, summary] in lines
    for file, experiments in variants.listed(variants.SHIPPED):
        place = next(
            at for at, line in enumerate(lines) if line == [str(file.relative_to(ROOT)), experiments.description]
        )
        told = itertools.takewhile(lambda line: len(line) == 1, lines[place + 1 :])
        assert " ".join(word for (word,) in told).split(", ") == list(experiments.variants)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["run", "nowhere.yaml"], "nowhere.yaml: cannot be read (No such file or directory)"),
        (["check", QUICKSTART, "-o", "algorithm.K=0"], "algorithm.K: should be greater than 0 (got 0)"),
        (["run", QUICKSTART, "-o", "algoritm.K=1"], "algoritm: unknown key; did you mean 'algorithm'?"),
        (
            ["run", QUICKSTART, "-o", "algorithm.S=101"],
            "algorithm.S: cannot sample 101 clients of 100; lower algorithm.S",
        ),
        (["plot", "nowhere", "--out", "x.png"], "nowhere is no folder of a run with results (nowhere/config.yaml)"),
    ],
)
def test_an_error_of_the_users_is_one_line_and_status_2(raysim: Raysim, words: list[str], error: str) -> None:
    assert raysim(*words) == (2, "", f"error: {error}\n")


def test_a_folder_that_cannot_be_made_is_named(raysim: Raysim, ruler: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = raysim("run", ruler, "-o", f"output.folder={tmp_path / 'file'}")
    assert done.status == 2
    assert re.fullmatch(r"error: output\.folder: cannot make .*/file/ruler-[\d-]+ \(Not a directory\)\n", done.err)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["rnu"], "No such command 'rnu'"),
        (["check"], "Missing argument"),
        (["run", QUICKSTART, "--bogus"], "No such option: --bogus"),
        (["run", QUICKSTART, "-o"], "requires an argument"),
        (["plot", "x"], "Missing option '--out'"),
    ],
)
def test_a_wrong_command_line_is_status_2(raysim: Raysim, words: list[str], complaint: str) -> None:
    done = raysim(*words)
    assert (done.status, done.out) == (2, "")
    assert complaint in done.err


def test_help(raysim: Raysim) -> None:
    done = raysim("run", "--help")
    assert (done.status, done.err) == (0, "")
    assert "CONFIG" in done.out
    assert "key.sub=value" in done.out


def test_a_fault_in_client_code_comes_with_its_traceback(raysim: Raysim, ruler: str, tmp_path: Path) -> None:
    done = raysim("run", ruler, "-o", "problem={name: tests.toys:Faulty, limit: 0}")
    assert done.status == 2
    first, *trace = done.err.splitlines()
    assert re.fullmatch(r"error: client \d, round 0, phase 'collect': ValueError: a row I did not expect", first)
    assert trace[0] == "Traceback (most recent call last):"
    assert "toys.py" in done.err
    assert trace[-1] == "ValueError: a row I did not expect"


def stopped(words: list[str], after: str, *signals: int) -> tuple[int, list[str], str]:
    """A run of the script that gets signals after a line that begins so: its status, its output, its errors."""
    with subprocess.Popen([SCRIPT, *words], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        seen = []
        for line in run.stdout:
            seen.append(line)
            if line.startswith(after):
                break
        for number in signals:
            time.sleep(0.5)  # what follows the line has begun, and the signal before was heard
            run.send_signal(number)
        out, err = run.communicate(timeout=60)
    return run.returncode, [*map(str.rstrip, seen), *out.splitlines()], err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_goes_on_to_the_bit(
    number: int, status: int, raysim: Raysim, ruler: str, tmp_path: Path
) -> None:
    words = ["run", ruler, "-o", "rounds=200", "-o", "evaluate.every=1", "-o", "checkpoint.every=1000000"]
    code, lines, err = stopped(words, "round 2/", number)
    (folder,) = folders(tmp_path)
    assert code == status
    assert lines[0] == f"ruler: 8 clients, results in {folder}"
    told = re.fullmatch(r"stopped after (\d+) of 200 rounds; go on with: (raysim run --resume .*)", lines[-1])
    assert told
    assert told[2] == f"raysim run --resume {folder}"
    assert err == "stopping after this round; once more to stop at once\n"
    assert pq.read_table(folder / "metrics.parquet")["round"].to_pylist()[-1] == int(told[1])
    assert not (folder / "model.pt").exists()

    assert raysim(*told[2].split()[1:]).status == 0
    assert raysim(*words).status == 0
    (undisturbed,) = set(folders(tmp_path)) - {folder}
    assert not differences(folder, undisturbed)


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(ruler: str, tmp_path: Path) -> None:
    slow = ["-o", "problem={name: tests.toys:Slow, seconds: 20}", "-o", "rounds=10"]
    code, lines, _ = stopped(["run", ruler, *slow], "round 0/", signal.SIGINT, signal.SIGINT)
    (folder,) = folders(tmp_path)
    assert code == 130
    assert lines[-1] == f"stopped in a round; go on from the last checkpoint with: raysim run --resume {folder}"


@pytest.mark.slow
def test_a_disk_that_is_full_is_named_and_nothing_written_is_lost(raysim: Raysim, ruler: str, tmp_path: Path) -> None:
    words = ["run", ruler, "-o", "rounds=150", "-o", "evaluate.every=50", "-o", "algorithm.S=8"]
    assert raysim(*words).status == 0
    (whole,) = folders(tmp_path)
    last = (whole / "log.jsonl").stat().st_size * 9 // 10

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (last, last))

    done = subprocess.run([SCRIPT, *words], cwd=ROOT, text=True, capture_output=True, timeout=60, preexec_fn=full)
    (folder,) = set(folders(tmp_path)) - {whole}
    assert done.returncode == 2
    assert re.fullmatch(
        rf"error: cannot write {folder}/log\.jsonl \(File too large\); free space or choose another folder\n",
        done.stderr,
    )
    assert not [path for path in folder.rglob(".*") if path.is_file()], "halves of files"
    written = pq.read_table(folder / "participation.parquet")
    assert 0 < len(written) < 150 * 8
    assert written.equals(pq.read_table(whole / "participation.parquet").slice(0, len(written)))
    assert raysim("run", "--resume", str(folder)).status == 0
    ends = [pq.read_table(where / "participation.parquet") for where in (folder, whole)]
    assert ends[0].equals(ends[1])
    assert [event["round"] for event in log(folder) if event["event"] == "round"][-1] == 150, "no line is half"


def test_more_rounds_and_other_workers_may_be_asked_for_on_resuming(raysim: Raysim, ruler: str, tmp_path: Path) -> None:
    assert raysim("run", ruler, "-o", "rounds=3").status == 0
    (folder,) = folders(tmp_path)
    assert raysim("run", "--resume", str(folder), "-o", "rounds=7", "-o", "checkpoint.keep=1").status == 0
    assert raysim("run", ruler, "-o", "rounds=7").status == 0
    (undisturbed,) = set(folders(tmp_path)) - {folder}
    assert tables(folder)["metrics"]["round"].to_pylist()[-1] == 7
    assert not differences(folder, undisturbed)
    assert load_config(folder / "config.yaml").rounds == 7


def test_a_run_goes_on_with_a_copy_of_its_files_and_not_with_others(raysim: Raysim, ruler: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tables = [pa.table({"label": [0, 1] * 20, "a": rng.normal(size=40)}) for _ in range(2)]
    for name, table in zip(("first", "copy", "other"), (tables[0], *tables), strict=True):
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / "train.parquet")

    def data(name: str) -> str:
        return f"data={{name: parquet, train: {tmp_path / name}/train.parquet, test_fraction: 0.25}}"

    own = [
        "partition={name: iid, clients: 4}",
        "problem={name: auc}",
        "model={name: mlp, hidden: [4]}",
        "evaluate={every: 1}",
    ]
    assert raysim("run", ruler, *(word for key in [data("first"), *own] for word in ("-o", key))).status == 0
    (folder,) = folders(tmp_path)
    other = raysim("run", "--resume", str(folder), "-o", data("other"), "-o", "rounds=5")
    assert other.status == 2
    assert f"data.train was '{tmp_path}/first/train.parquet' and is '{tmp_path}/other/train.parquet'" in other.err
    assert raysim("run", "--resume", str(folder), "-o", data("copy"), "-o", "rounds=5").status == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "algorithm.eta=0.1", "-o", "seed=3"], "algorithm.eta was 0.05 and is 0.1; seed was 0 and is 3"),
        (["-o", "rounds=2"], "rounds: is 2, and 4 are done"),
        (["--from", "3"], "there is no checkpoint of round 3 in .*, only of \\[.*4\\]"),
    ],
)
def test_what_a_run_cannot_go_on_with_is_refused(
    words: list[str], message: str, raysim: Raysim, ruler: str, tmp_path: Path
) -> None:
    assert raysim("run", ruler).status == 0
    (folder,) = folders(tmp_path)
    done = raysim("run", "--resume", str(folder), *words)
    assert done.status == 2
    assert re.search(message, done.err)


@pytest.mark.parametrize("words", [[], ["x.yaml", "--resume", "y"], ["x.yaml", "--from", "2"]])
def test_a_configuration_or_a_run_but_not_both(words: list[str], raysim: Raysim) -> None:
    done = raysim("run", *words)
    assert done.status == 2
    assert "--resume" in done.err


@pytest.mark.ray
def test_the_quickstart_over_ray_gives_the_bits_it_gives_without(raysim: Raysim, tmp_path: Path) -> None:
    words = ["run", QUICKSTART, "-o", "rounds=6", "-o", "evaluate.every=3", "-o", f"output.folder={tmp_path / 'runs'}"]
    over_ray = subprocess.run([SCRIPT, *words], cwd=ROOT, text=True, capture_output=True, timeout=300)
    assert (over_ray.returncode, over_ray.stderr) == (0, "")
    (first,) = folders(tmp_path)
    assert raysim(*words, "-o", "clients.fleet=in_process").status == 0
    (second,) = set(folders(tmp_path)) - {first}
    assert not differences(first, second)


@pytest.mark.slow
@pytest.mark.ray
def test_a_study_is_played_and_reported_on(raysim: Raysim, ray_cluster: None, ruler: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    study = {"name": "mine", "base": ruler, "grid": {"algorithm.eta": [0.05, 1e200], "seed": [0, 1]}, "select": {}}
    path.write_text(yaml12.dump(study | {"folder": str(tmp_path / "runs")}))
    done = raysim("study", str(path), "-o", "set.evaluate.target=1e9")
    assert done.status == 1, "two trials failed"
    (where,) = (tmp_path / "runs").iterdir()
    assert f"4 of 4 trials to be played, in {where}" in done.out
    assert re.search(r"^ruler_eta1e200_seed0 failed: \S", done.out, re.MULTILINE)
    assert f"2 of 4 trials finished, in {where}" in done.out
    assert re.search(r"^best for parallel_sgda: eta = 0.05, median \S+ of 2/2 runs$", done.out, re.MULTILINE)
    page = (where / "report" / "report.html").read_text()
    assert "mine" in page
    command = re.search(r"Made with <code>raysim (.*?)</code>", page)
    assert command is not None
    before = (where / "report" / "report.html").stat().st_mtime_ns
    assert raysim(*command[1].split()).out == f"wrote {where / 'report' / 'report.html'}\n"
    assert (where / "report" / "report.html").stat().st_mtime_ns > before
    # A run of it is a run, and it is a study for `run` too.
    assert raysim("report", str(where / "trials" / "ruler_eta0.05_seed0"), "--out", str(tmp_path / "one")).status == 0
    again = raysim("run", "--resume", str(where), "-o", "early={over: [algorithm.eta], grace: 2}")
    assert "2 of 4 trials to be played" in again.out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["study"], "give either a study, or --resume with the folder of one"),
        (["study", QUICKSTART], f"{QUICKSTART}: is no study: it has no base, grid or parts; see `raysim run`"),
        (["study", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["study", "--resume", "nowhere"], "--resume: "),
        (["report", "nowhere"], f"{Path('nowhere').resolve()} is no folder of a finished run, nor of a study"),
    ],
)
def test_no_study_and_no_run_to_report_on(words: list[str], error: str, raysim: Raysim) -> None:
    done = raysim(*words)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {error}")


def test_a_study_without_ray_tune_says_what_to_install(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cluster.trials", raising=False)
    monkeypatch.delattr("cluster.trials", raising=False)
    monkeypatch.delattr("ray.tune", raising=False)
    monkeypatch.setitem(sys.modules, "ray.tune", None)
    done = raysim("study", str(ROOT / "configs" / "studies" / "tiny.yaml"))
    assert done.status == 2
    assert done.err.startswith("error: studies need Ray Tune: pip install 'raysim[tune]'")
