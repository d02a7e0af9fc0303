"""The command line. Nothing heavy is imported before a command needs it."""

import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from mmrl.commands.launcher import is_alone, is_first_here, is_main
from mmrl.commands.options import (
    At,
    ConfigName,
    Images,
    Json,
    Overrides,
    Source,
    Videos,
    Which,
    checkpoint_named,
    show,
    weights_named,
)
from mmrl.system.errors import ConfigError, Interruption, RunError, shortened
from mmrl.system.last_resort import INTERRUPTED, LastResort
from mmrl.system.terminal import check_arguments, guard_streams
from mmrl.system.versions import version_of

TOKEN = "MMRL_SERVE_TOKEN"  # an environment variable, since others can see the arguments of a process

app = typer.Typer(
    help="Fine-tune generative and multimodal models by the rewards of their outputs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class _Stopped(Interruption):
    """Ctrl-C, with the end of the message about it.

    It is no KeyboardInterrupt, which typer ends without a message, and which ends the process by the signal where it
    passes through an import.
    """


def _print_version(is_given: bool) -> None:
    if is_given:
        print(f"mmrl {version_of('mmrl') or 'of a bare folder, which has no version'}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error was raised; may stand anywhere.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of all commands; `main` removes --debug before they are read."""


@app.command()
def train(
    config: Annotated[
        str | None, typer.Argument(metavar="CONFIG", help="A shipped config's name, or a YAML file.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run directory; runs/<config>-<time> by default.")
    ] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="A run directory to go on with.")] = None,
) -> None:
    """Train; stop it at any moment and go on with --resume RUN."""
    from mmrl.run_directory import start
    from mmrl.run_directory.lock import RunLock

    changes = list(overrides or [])
    if resume is not None:
        if out is not None:
            raise ConfigError(f"--resume goes on in {resume}; leave out --out {out}")
        if config is not None:
            if "=" not in config:
                raise ConfigError(f"--resume takes the settings of the run; leave out {config!r}")
            changes.insert(0, config)
        checked, folder = start.resumed_run(resume, changes, is_main=is_main()), resume
    elif config is None:
        raise ConfigError("train needs a CONFIG or --resume RUN; `mmrl list configs` shows the shipped ones")
    else:
        checked, folder = start.new_run(config, changes, out, is_main=is_main())
    path = folder.absolute()  # a reward may change the working folder

    def leave() -> str:
        if is_main():
            RunLock(path).give_back()
            if resume is None:
                start.forget(path)
        return start.left_behind(path, folder)

    with LastResort(leave, is_reporting=is_first_here()) as last_resort:
        try:
            outcome = None
            if resume is not None and is_alone():
                from mmrl.commands.finished import finish

                if (outcome := finish(checked, folder)) is not None:
                    print(f"{folder} is done already: nothing is left to train")
            if outcome is None:
                from mmrl.commands.train import train as train_run

                is_resumed = resume is not None
                outcome = train_run(checked, folder, resume=is_resumed, is_main=is_main(), last_resort=last_resort)
        except (KeyboardInterrupt, _Stopped) as error:
            raise _Stopped(leave()) from error
    if is_main():
        print(outcome)
    if not outcome.is_complete:
        raise typer.Exit(1)


@app.command()
def check(
    config: ConfigName,
    overrides: Overrides = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Run two iterations on small random twins of all parts.")
    ] = False,
    prove: Annotated[
        bool, typer.Option("--prove", help="Load the model itself and compare it with its library, at these settings.")
    ] = False,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Forecast memory and hours on one of h100, h200, a100, 4090.")
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", min=1, help="With --gpu: the longest prompt, its images included.")
    ] = 1300,
    as_json: Json = False,
) -> None:
    """Validate a config and print its plan; --tiny runs all of it, small, on this machine."""
    from mmrl.commands.check import check_proven, check_tiny, gpu_forecast, plan_summary
    from mmrl.core.config import load_config

    if tiny and prove:
        raise ConfigError("--prove loads the config's model and --tiny another one: give one of them")
    if gpu is not None and (tiny or prove):
        raise ConfigError("--gpu forecasts and loads nothing: give it without --tiny and --prove")
    checked = load_config(config, overrides or [])
    if gpu is not None:
        return show(gpu_forecast(checked, gpu, prompt_tokens), as_json)
    if tiny:
        summary = check_tiny(checked, is_shown=is_main())
    else:
        summary = check_proven(checked) if prove else plan_summary(checked)
    show(summary, as_json)
    if not summary.get("is_good", True):
        raise typer.Exit(1)


@app.command()
def init(
    model: Annotated[str | None, typer.Option("--model", help="A model of the hub, or its folder.")] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="A .txt of prompts, rows, a folder with both rows and images, or OWNER/NAME."),
    ] = None,
    reward: Annotated[str | None, typer.Option("--reward", help="A reward: `mmrl list rewards`.")] = None,
    memory: Annotated[float | None, typer.Option("--memory", help="Memory of one GPU in GB.")] = None,
    like: Annotated[str | None, typer.Option("--like", help="The shipped config to start from.")] = None,
    layout: Annotated[str | None, typer.Option("--layout", help="How the rows are written: docs/data.md.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The config to write.")] = Path("config.yaml"),
) -> None:
    """Write a config to start from, by the recipe that is nearest to your model, data and reward; asks for the rest."""
    from mmrl.commands.init import Wishes, said, start_from

    if out.exists():
        raise ConfigError(f"{out} is there already; --out names another file")
    asked = {"model": model, "data": data, "reward": reward, "memory": memory}
    questions = {
        "model": "Model (a name of the hub, or a folder)",
        "data": "Data (a .txt of prompts, a file of rows, a folder, or OWNER/NAME)",
        "reward": "Reward (see `mmrl list rewards`)",
        "memory": "Memory of one GPU in GB",
    }
    if missing := [f"--{name}" for name, value in asked.items() if value is None]:
        if not sys.stdin.isatty():
            raise ConfigError(f"init needs {', '.join(missing)}; on a terminal it asks for them")
        for name, question in questions.items():
            if asked[name] is None:
                asked[name] = typer.prompt(question, type=float if name == "memory" else str)
    start = start_from(Wishes(**asked, like=like, layout=layout))  # type: ignore[arg-type]  # all are there now
    out.write_text(start.text, encoding="utf-8")
    for line in said(start, out):
        print(line)


@app.command()
def doctor(
    source: Source,
    overrides: Overrides = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="On random small twins of all parts; of a config.")] = False,
    as_json: Json = False,
) -> None:
    """Say why the reward does not rise: of a run by its log, of a config by its first iterations."""
    from dataclasses import asdict

    from mmrl.commands.doctor import doctor as findings_of
    from mmrl.commands.doctor import said

    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what a reward prints is no JSON
        found = findings_of(source, overrides or [], is_tiny=tiny)
    if is_main():
        print(json.dumps([asdict(one) for one in found], indent=2) if as_json else said(found))
    if any(one.severity == "fatal" for one in found):
        raise typer.Exit(1)


@app.command("list")
def list_plugins(
    kind: Annotated[str, typer.Argument(help="configs, recipes, rewards ...; without one the kinds are listed.")] = "",
    as_json: Json = False,
) -> None:
    """List the shipped configs, the recipes with their papers, the systems, or the plug-ins of a kind."""
    from mmrl.commands import listing

    rows = listing.rows(kind)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for line in listing.lines(kind, rows, shutil.get_terminal_size().columns):
        print(line)


@app.command()
def sample(
    source: Source,
    overrides: Overrides = None,
    *,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", help="The text of a prompt; may be given more than once.")
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            "--prompts", help="A file of prompts, as a run reads: .txt, .jsonl, .parquet ..., or lab:NAME/SPLIT."
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task", help="An agent's task: its name, its text, or a JSON object; may be given more than once."
        ),
    ] = None,
    image: Images = None,
    video: Videos = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="Samples per prompt: 4 by default, 1 of a --task.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    score: Annotated[
        bool, typer.Option("--score", help="With --prompts or --task: score by the run's rewards as well.")
    ] = False,
    weights: Which = None,
    at: At = "last",
    sampler: Annotated[
        str | None, typer.Option("--sampler", help="evaluation (the default), train, or one of evaluation.also.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write; samples by default.")] = None,
) -> None:
    """Sample pictures, videos, answers or episodes with a run's weights (or those of a config, untrained)."""
    ways = {"--prompt": prompt, "--prompts": prompts, "--task": task}
    if len(given := [name for name, value in ways.items() if value]) != 1:
        raise ConfigError(f"sample needs one of {', '.join(ways)}, got {', '.join(given) or 'none'}")
    which, checkpoint, folder = weights_named(weights), checkpoint_named(at), out or Path("samples")
    if not prompt:
        if image or video:
            raise ConfigError(f"--image and --video belong to a --prompt; {given[0]} brings its own")
        from mmrl.commands.sample_many import Request, sample_file, sample_tasks

        number = count or (4 if prompts else 1)
        request = Request(source, number, seed, which, checkpoint, sampler, score, overrides or [])
        with _going_on_in(folder):
            sampled = sample_file(request, prompts, folder) if prompts else sample_tasks(request, task or [], folder)
        for line in [*(sampled.turns() if task else ()), str(sampled)]:
            print(line)
        return
    if score:
        raise ConfigError("--score belongs to --prompts or --task; `mmrl score` scores the samples of a --prompt")
    from mmrl.commands.sample import sample as write_samples

    folder = write_samples(
        *(source, prompt, count or 4, seed, folder, which, checkpoint),
        images=image or [],
        videos=video or [],
        by=sampler,
        overrides=overrides or [],
    )
    for listed in json.loads((folder / "samples.json").read_text(encoding="utf-8"))["samples"]:
        if "text" in listed:
            print(f"{listed['prompt']}: {listed['text']}")
    print(folder)


@app.command("filter")
def filter_data(
    source: Source,
    overrides: Overrides = None,
    *,
    variance: Annotated[
        float, typer.Option("--variance", min=0, help="Keep rows whose answers' rewards have a larger variance.")
    ],
    count: Annotated[int, typer.Option("--count", min=2, help="Answers of each row.")] = 8,
    most: Annotated[
        int | None, typer.Option("--most", min=1, help="Rows to keep at most, those of the largest variance.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    weights: Which = None,
    at: At = "last",
    sampler: Annotated[
        str, typer.Option("--sampler", help="train (the default), evaluation, or one of evaluation.also.")
    ] = "train",
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write; filtered by default.")] = None,
) -> None:
    """Choose training rows before a run: sample answers to each row, keep rows whose rewards differ."""
    from mmrl.commands.filter_rows import filter_rows
    from mmrl.commands.sample_many import Request

    which, checkpoint, folder = weights_named(weights), checkpoint_named(at), out or Path("filtered")
    request = Request(source, count, seed, which, checkpoint, sampler, True, overrides or [])
    with _going_on_in(folder):
        found = filter_rows(request, folder, variance, most)
    print(found)
    print("train on the rest with:", shlex.join([*(overrides or []), *found.settings]))


@app.command()
def evaluate(
    source: Source,
    overrides: Overrides = None,
    weights: Which = None,
    at: At = "last",
    suite: Annotated[
        list[str] | None,
        typer.Option("--suite", help="A benchmark by its name (`mmrl list suites`) or its file; may be given again."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="With --suite: the folder or file of its data, as published.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="With --suite: a try on so many prompts, evenly spread.")
    ] = None,
    tiny: Annotated[
        bool,
        typer.Option("--tiny", help="With --suite and a config: on small random twins of the model and the judge."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="With --suite: the folder to write; RUN/suites by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a run's weights (or those of a config, untrained) on its held-out prompts, or by suites."""
    which, checkpoint = weights_named(weights), checkpoint_named(at)
    if suite:
        from mmrl.commands.suite import Wanted, evaluate_suites
        from mmrl.commands.suite_card import shown

        wanted = Wanted(source, which, checkpoint, overrides or [], data=data, limit=limit, is_tiny=tiny, out=out)
        with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what a reward prints is no JSON
            cards = evaluate_suites(wanted, suite)
        if is_main():
            print(json.dumps(cards, indent=2)) if as_json else shown(cards)
        return
    given = {"--data": data, "--limit": limit, "--tiny": tiny or None, "--out": out}
    if alone := [name for name, value in given.items() if value is not None]:
        raise ConfigError(f"{', '.join(alone)} goes with --suite; `mmrl list suites` names the suites")
    from mmrl.commands.train import evaluate as evaluate_weights

    result = evaluate_weights(source, which, checkpoint, overrides or [])
    if is_main():
        show(result.metrics, as_json)


@app.command()
def score(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A folder of pictures or videos, or a file of answers.")],
    reward: Annotated[
        list[str], typer.Option("--reward", help="A reward, with settings: 'box_iou kind=giou'; may be given again.")
    ],
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="The prompt of outputs that have none of their own.")
    ] = None,
    response: Annotated[str | None, typer.Option("--response", help="The field of the answers in a file.")] = None,
    coordinates: Annotated[str, typer.Option(help="Unit of places in answers: original, thousand, unit.")] = "original",
    dialect: Annotated[
        str | None, typer.Option(help="How answers write actions: plain, qwen, ui_tars, pyautogui ...")
    ] = None,
    frames: Annotated[
        int | None, typer.Option("--frames", min=2, help="Frames of each video, evenly spread; all by default.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="The largest number of outputs; the first ones are scored.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="A page of all outputs, the best first.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A .jsonl file of the scores of each output.")] = None,
    best: Annotated[
        Path | None, typer.Option("--best", help="A .jsonl file of the best output of each prompt (best of n).")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="The device of rewards with a model: cpu, cuda ...")] = "cpu",
    as_json: Json = False,
) -> None:
    """Score existing outputs, pictures, videos or answers, with any rewards."""
    from mmrl.commands.score import check_written, reward_section, score_path, write
    from mmrl.commands.score_results import Seeing

    sections = [reward_section(text) for text in reward]
    seeing = Seeing.checked(coordinates, dialect, frames)
    check_written(path, out, best, html)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what a reward prints is no JSON
        scored = score_path(path, sections, prompt=prompt, response=response, seeing=seeing, limit=limit, device=device)
    written = write(scored, str(path), seeing, out=out, best=best, html=html)
    for failure in scored.failures() if as_json else ():
        print(failure, file=sys.stderr)
    print(json.dumps(scored.summary(), indent=2) if as_json else "\n".join(map(str, [scored, *written])))
    if set(scored.total) == {None}:
        raise typer.Exit(1)


@app.command()
def vote(
    source: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, or a folder that `mmrl sample` wrote.")
    ],
    against: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="Another one, whose outputs RUN's are compared with.")
    ] = None,
    *,
    voter: Annotated[str, typer.Option("--voter", help="Who votes; several people can vote on the same outputs.")],
    form: Annotated[
        str, typer.Option("--form", help="pairs: the better one of two; grid: the good ones of several.")
    ] = "pairs",
    size: Annotated[int, typer.Option("--size", help="Outputs of a grid, 2 to 9.")] = 4,
    iteration: Annotated[
        list[int] | None,
        typer.Option("--iteration", help="A saved iteration of the run, at most two; the first and the last."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The most tasks.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of which outputs meet, and of their order.")] = 0,
    criterion: Annotated[
        str, typer.Option("--criterion", help="By what the outputs are compared, in words for the page.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option("--out", help="The file of the votes; RUN/votes.jsonl by default.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0: a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    summary: Annotated[
        bool, typer.Option("--summary", help="Print the summary of the votes, and show no page.")
    ] = False,
) -> None:
    """Let people compare outputs in a browser, blind; training, rewards and judges take their votes."""
    from mmrl.commands.vote import summary_of
    from mmrl.commands.vote import vote as vote_on
    from mmrl.commands.vote_tasks import VoteSettings

    settings = VoteSettings.checked(voter, form, size, tuple(iteration or ()), limit, seed, criterion)
    sources = [source] if against is None else [source, against]
    if summary:
        print(summary_of(sources, settings, out=out))
    else:
        print(vote_on(sources, settings, out=out, port=port, is_opened=browser))


judge_app = typer.Typer(help="Try a judge, or any reward, before it is learned from.", no_args_is_help=True)
app.add_typer(judge_app, name="judge")
RewardText = Annotated[str, typer.Argument(metavar="REWARD", help="A reward, with settings: 'text_judge prompt=...'.")]
Device = Annotated[str, typer.Option("--device", help="The device of a reward with a model: cpu, cuda ...")]
Tiny = Annotated[bool, typer.Option("--tiny", help="On a random small twin of the reward's model.")]


@judge_app.command()
def attack(
    reward: RewardText,
    rows: Annotated[Path | None, typer.Option("--rows", help="A file of prompts with the fields of targets.")] = None,
    tiny: Tiny = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Show how often a reward is talked into a good score by outputs that answer nothing."""
    from dataclasses import asdict

    from mmrl.commands.judge_attack import attack as attempts_of
    from mmrl.commands.judge_attack import table
    from mmrl.commands.score import reward_section

    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what a reward prints is no JSON
        attempts = attempts_of(reward_section(reward), rows=rows, is_tiny=tiny, device=device)
    print(json.dumps([asdict(one) for one in attempts], indent=2) if as_json else table(attempts))


@judge_app.command()
def agree(
    reward: RewardText,
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file or folder of pairs, or OWNER/NAME of the hub.")],
    layout: Annotated[
        str,
        typer.Option(
            "--layout", help="pairs, votes, mj_bench, vl_rewardbench, mm_rlhf or genai_bench: docs/judges.md."
        ),
    ] = "pairs",
    subset: Annotated[str | None, typer.Option("--subset", help="A configuration of a data set of the hub.")] = None,
    split: Annotated[
        list[str] | None, typer.Option("--split", help="A split of the data, an aspect of its own; may be repeated.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The most pairs of each split.")] = None,
    tiny: Tiny = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Show how often a reward prefers what people preferred; exit 1 for a reward that is below chance."""
    from dataclasses import asdict

    from mmrl.commands.judge_agree import agree as agreements_of
    from mmrl.commands.judge_agree import table
    from mmrl.commands.score import reward_section

    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what a reward prints is no JSON
        section = reward_section(reward)
        found = agreements_of(
            section, data, layout, subset=subset, splits=split or (), limit=limit, is_tiny=tiny, device=device
        )
    rows = [{**asdict(one), "accuracy": one.accuracy, "interval": one.interval} for one in found]
    print(json.dumps(rows, indent=2) if as_json else table(found))
    if found[0].is_below_chance:
        print("the reward is below chance: it prefers what people do not; do not learn from it", file=sys.stderr)
        raise typer.Exit(1)


@judge_app.command()
def rows(
    reward: RewardText,
    data: Annotated[str, typer.Argument(metavar="DATA", help="Judged answers: prompt, answer, response, label.")],
    out: Annotated[Path, typer.Option("--out", help="The file of JSON lines that is written.")],
    openers: Annotated[float, typer.Option("--openers", help="Openers that answer nothing, for one judged answer.")] = (
        0.125
    ),
    seed: Annotated[int, typer.Option("--seed", help="The seed by which openers are drawn.")] = 0,
) -> None:
    """Write rows that a judge learns from, with openers that answer nothing among them."""
    from mmrl.commands.judge_rows import write_rows
    from mmrl.commands.score import reward_section

    count = write_rows(reward_section(reward), data, out, openers=openers, seed=seed)
    print(f"{count} rows of the layout given_answers in {out}")


@app.command()
def serve(
    reward: Annotated[
        list[str],
        typer.Argument(metavar="REWARD...", help="A reward, with settings in quotes: 'box_iou kind=giou label=iou'."),
    ],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0: a free one.")],
    host: Annotated[
        str, typer.Option("--host", help="The address to listen at; all but this machine's own need a token.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help=f"A file with the token of clients; or else ${TOKEN} holds it."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="The device of rewards with a model: cpu, cuda ...")] = "cpu",
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Samples of one call; the reward's own, or 64.")
    ] = None,
    max_body: Annotated[int, typer.Option("--max-body", min=1, help="Megabytes of one request.")] = 512,
    max_item: Annotated[int, typer.Option("--max-item", min=1, help="Megabytes of one sample's media.")] = 512,
    max_items: Annotated[int, typer.Option("--max-items", min=1, help="Samples of one request.")] = 4096,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds in which a request is answered.")] = 600.0,
) -> None:
    """Serve rewards over HTTP to the reward `http` of runs on this or other machines."""
    from mmrl.commands.score import reward_section

    try:
        from mmrl.commands.serve import read_token
        from mmrl.commands.serve import serve as serve_rewards
        from mmrl.scoring.server import ServerSettings
    except ModuleNotFoundError as error:
        raise ConfigError("`mmrl serve` needs the extra serve: pip install 'mmrl[serve]'") from error
    try:
        settings = ServerSettings(
            max_body=max_body * 2**20,
            max_item=max_item * 2**20,
            max_items=max_items,
            request_seconds=timeout,
            batch_size=batch_size,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    token = read_token(token_file, os.environ.get(TOKEN))
    sections = [reward_section(text) for text in reward]
    serve_rewards(sections, host, port, settings=settings, token=token, device=device)


@app.command()
def report(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the report in a browser while the run trains; end it with Ctrl-C.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="The port of --watch; 0: a free one. 8765 by default."),
    ] = None,
) -> None:
    """Write a run's report.html again, or show it while the run trains."""
    if watch:
        from mmrl.commands.watch import watch as watch_run

        watch_run(source, 8765 if port is None else port)
        return
    if port is not None:
        raise ConfigError("--port is for --watch, which was not given")
    from mmrl.reporting.report import write_report

    print(write_report(source))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Two to eight run directories.")],
    out: Annotated[Path | None, typer.Option("--out", help="The page to write; compare.html by default.")] = None,
    as_json: Json = False,
) -> None:
    """Write a page of several runs: curves on one axis, settings that differ, the same prompts side by side."""
    from mmrl.reporting import compared_runs
    from mmrl.reporting.report import write_comparison

    compared = compared_runs.read_runs(runs)
    page = None if as_json and out is None else write_comparison(compared, out or Path("compare.html"))
    print(json.dumps(compared_runs.as_json(compared), indent=2) if as_json else page)


@app.command()
def export(
    source: Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The folder to write; by default RUN/export, of the best RUN/export-best."),
    ] = None,
    weights: Which = None,
    at: At = "last",
) -> None:
    """Write a run's weights as a plain model folder or a LoRA that other tools load."""
    from mmrl.commands.train import export as export_weights

    which = checkpoint_named(at)
    folder = out or Path(source) / ("export-best" if which == "best" else "export")
    print(export_weights(source, folder, weights_named(weights), which))


def main() -> NoReturn:
    """Runs the command; the one place where errors become messages and exit codes."""
    guard_streams()
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    # a user's own plug-ins are found in the working folder, but never shadow an installed package
    sys.path.append(os.getcwd())
    try:
        check_arguments(arguments)
        with _stopping():
            app(args=arguments, prog_name="mmrl", standalone_mode=True)
    except (ConfigError, RunError) as error:
        if debug:
            raise
        if is_first_here():  # the processes of a run fail alike, and one of them says why
            print(f"mmrl: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except OSError as error:  # a disk that is full, a folder that cannot be written
        if debug:
            raise
        print(f"mmrl: {shortened(str(error))} (--debug shows where)", file=sys.stderr)
        sys.exit(1)
    except ValueError:
        if debug or sys.stdout is None or not sys.stdout.closed:
            raise
        print("mmrl: something closed standard output while the command ran, maybe a plug-in", file=sys.stderr)
        sys.exit(1)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer's, which says nothing
            _print_stopped("")
        raise
    except (_Stopped, KeyboardInterrupt) as stopped:
        _print_stopped(str(stopped))
        sys.exit(INTERRUPTED)
    sys.exit(0)


@contextmanager
def _going_on_in(folder: Path) -> Iterator[None]:
    """Makes Ctrl-C say that the same command goes on in a folder, where samples are there already."""
    try:
        yield
    except (KeyboardInterrupt, _Stopped) as error:
        is_begun = (folder / "samples.jsonl").is_file()
        raise _Stopped(f"; the same command goes on in {folder}" if is_begun else "") from error


@contextmanager
def _stopping() -> Iterator[None]:
    """Raises _Stopped inside on Ctrl-C; a second Ctrl-C ends the process at once.

    While it trains, a run has a handler of its own.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored under nohup, or somebody else's
        yield
        return

    is_stopping = False

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal is_stopping
        if is_stopping:
            os.write(2, b"mmrl: stopped\n" if is_first_here() else b"")
            os._exit(INTERRUPTED)
        is_stopping = True
        raise _Stopped

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _print_stopped(words: str) -> None:
    if is_first_here():
        print(f"mmrl: stopped{words}", file=sys.stderr)
