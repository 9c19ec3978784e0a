"""Commands that exchange weights with other libraries: import, export, push.

An imported directory is a checkpoint directory without optimizer state, which can be given to every
`--checkpoint` and `--init`; `t5x_lite.interop.hf_import` lists its files.
"""

import contextlib
import dataclasses
import importlib.util
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from t5x_lite.commands.command import command
from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.option_types import (
    ALL_MODULES,
    AnyDirectory,
    AnyFile,
    Destination,
    Dtype,
    Modules,
    Number,
    OptionalDirectory,
    OptionalFeedForward,
    OptionalNatural,
    OptionalPooling,
    OptionalPositive,
    OptionalText,
    Platforms,
    Repository,
    Source,
    Step,
    Text,
)
from t5x_lite.core.project import trusting_checkpoints

_logger = logging.getLogger(__name__)

_EXPORTED = ("config.json", "adapter_config.json")
_WEIGHTS = ("*.safetensors", "*.bin")
_OF_CHECKPOINT = ("checkpoints", "params")
"""Names of folders that only work directories and checkpoint directories have."""


@command
def import_hf(
    source: Source,
    destination: Destination,
    *,
    dtype: Dtype = "keep",
    sentinels: Literal["hf", "seqio"] = "hf",
    part: Literal["model", "generator"] = "model",
    skip_from: OptionalNatural = None,
    revision: OptionalText = None,
) -> Path:
    """Import a model of Hugging Face transformers, from a directory or from the Hugging Face Hub.

    The supported models are T5, mT5, umT5, Flan-T5, UL2 and ByT5, and the encoders of T5
    (Sentence-T5, GTR), BERT, RoBERTa, XLM-R, ELECTRA and DeBERTa.

    The written checkpoint can be given to predict, score, evaluate, train --init and export.

    Example:
        t5x-lite import hf google/flan-t5-small work/flan

    Args:
      source: local directory with config.json, weights and tokenizer, or name ORG/NAME at the
        Hugging Face Hub (needs the extra "hub"); an existing local directory takes precedence.
      destination: output directory, which must be new or empty.
      dtype: data type of the written weights; "keep" keeps the data type of the source.
      sentinels: special tokens that predict and score recognize in texts: "hf" recognizes all
        special tokens (such as <extra_id_0> and </s>) anywhere, as transformers does; "seqio"
        recognizes only sentinels, at the start of a word. For ByT5, this option also sets the ids
        of the sentinels.
      part: model to import from a DeBERTaV3 release: "model" for the discriminator, "generator" for
        the generator (pytorch_model.generator.bin).
      revision: branch, tag or commit of a model at the Hugging Face Hub; default: main.
      skip_from: number of the encoder layer that feeds the head of a Condenser, such as 6 in the
        paper's 12-layer model; needed only for a source with a Condenser's head (model.pt).

    Returns:
      The path of the written directory.

    Raises:
      InputError: if the source is missing, damaged or not supported, or the destination exists; no
        output is left behind then.
    """
    from t5x_lite.core.files import new_directory
    from t5x_lite.interop.hf_export import directory_file
    from t5x_lite.interop.hf_import import (
        directories_of,
        import_model,
        import_towers,
        read_towers,
        tell_what_was_made,
    )
    from t5x_lite.interop.hub import find_source

    at_hub = find_source(source, revision=revision, generator=part == "generator")
    where, more = at_hub.directory, directory_file(at_hub)
    towers = directories_of(where)
    if towers and (part != "model" or skip_from is not None):
        raise InputError(
            f"--part and --skip-from need a source with one model, but {source} contains two; "
            "remove these options"
        )
    with new_directory(destination) as directory:
        if towers:
            found = read_towers(where, towers)
            import_towers(found, directory, destination, dtype=dtype, more=more)
        else:
            import_model(
                where,
                directory,
                destination,
                part=part,
                skip_from=skip_from,
                sentinels=sentinels,
                dtype=dtype,
                more=more,
            )
    return tell_what_was_made(destination)


@command
def import_t5x(
    source: Source,
    destination: Destination,
    *,
    vocabulary: AnyFile,
    extra_ids: OptionalNatural = None,
    step: OptionalNatural = None,
    dtype: Dtype = "keep",
    dropout_rate: Number = 0.1,
    feed_forward: OptionalFeedForward = None,
) -> Path:
    """Import a checkpoint of T5X, in T5X's own format or Orbax's.

    The written checkpoint can be given to predict, score, evaluate, train --init and export.

    Example:
        t5x-lite import t5x t5x_checkpoint work/t5 --vocabulary spiece.model

    Args:
      source: directory checkpoint_N of a T5X run, or the parent directory of such directories.
      destination: output directory, which must be new or empty.
      vocabulary: SentencePiece model, or "bytes" for ByT5; a T5X checkpoint has no vocabulary.
      extra_ids: number of sentinels to add to the vocabulary; default: 0 if the vocabulary has
        sentinels, otherwise 100.
      step: step number N of the checkpoint to import; default: the newest.
      dtype: data type of the written weights; "keep" keeps the data type of the source.
      dropout_rate: dropout rate for further training, which a T5X checkpoint does not record.
      feed_forward: kind of the feed-forward block, which a T5X checkpoint does not record; UL2
        needs gated-silu; default: gated-gelu if the checkpoint has a gate, otherwise relu.

    Returns:
      The path of the written directory.

    Raises:
      InputError: if the source is missing, damaged or not supported, or the destination exists; no
        output is left behind then.
    """
    from t5x_lite.core.files import new_directory
    from t5x_lite.interop.hf_import import import_t5x_model, tell_what_was_made
    from t5x_lite.interop.t5x import read_t5x

    fields = {} if feed_forward is None else {"feed_forward": feed_forward}
    with new_directory(destination) as directory:
        found = read_t5x(source, step=step, dropout_rate=dropout_rate, **fields)
        import_t5x_model(
            found,
            directory,
            destination,
            source=source,
            vocabulary=vocabulary,
            extra_ids=extra_ids,
            dtype=dtype,
        )
    return tell_what_was_made(destination)


@command
def import_adapter(
    source: Source,
    destination: Destination,
    *,
    base: AnyDirectory,
    step: Step = None,
    name: Text = "adapter",
    revision: OptionalText = None,
    trust_project: bool = False,
) -> Path:
    """Import an adapter of PEFT, of the library adapters or of composable-sft.

    The written directory contains the adapter, the head stored with it, and the path of the base
    model. It can be given to predict, evaluate and train --adapters.load. A source with the
    directories query/ and passage/ becomes a retriever with two encoders.

    Example:
        t5x-lite import adapter some_lora work/rte --base work/t5 --name rte

    Args:
      source: local directory of PEFT (adapter_config.json and adapter_model.safetensors or .bin),
        of adapters (adapter.safetensors or pytorch_adapter.bin) or of composable-sft
        (pytorch_diff.bin), or name ORG/NAME at the Hugging Face Hub (needs the extra "hub"); an
        existing local directory takes precedence.
      destination: output directory, which must be new or empty.
      base: base model of the adapter, such as the output of `t5x-lite import hf`.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      name: name of the adapter in the new checkpoint.
      revision: branch, tag or commit of an adapter at the Hugging Face Hub; default: main.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Returns:
      The path of the written directory.

    Raises:
      InputError: if the source is incomplete, damaged, of another base model or not supported, the
        base is damaged or has adapters, or the destination exists; no output is left behind then.
    """
    from t5x_lite.interop.adapter_checkpoints import import_module
    from t5x_lite.interop.sft import import_sft

    with trusting_checkpoints(trust_project):
        if os.path.isfile(os.path.join(source, "pytorch_diff.bin")):
            return import_sft(source, destination, base=base, step=step, name=name)
        return import_module(
            source, destination, base=base, step=step, name=name, revision=revision
        )


@command
def export_adapter(
    source: Source,
    destination: Destination,
    *,
    format: Literal["peft", "adapters", "sft"] = "peft",
    step: Step = None,
    name: OptionalText = None,
    no_head: bool = False,
    base_name: OptionalText = None,
    rank: OptionalPositive = None,
    trust_project: bool = False,
) -> Path:
    """Write an adapter of a checkpoint for another library, to load on the model of `export hf`.

    For a retriever with two encoders, the command writes the directories query/ and passage/.

    Example:
        t5x-lite export adapter work/rte rte_for_peft --format peft

    Args:
      source: work directory or checkpoint directory with the adapter; with --format peft or sft
        also a delta written by `t5x-lite compose`.
      destination: output directory, which must be new or empty.
      format: library to export for: peft; adapters, which also supports compositions; or sft
        (composable-sft), for sparse adapters and deltas.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      name: name of the adapter to export; default: the only adapter of the checkpoint.
      no_head: omit the head that was trained with the adapter.
      base_name: hub name or directory of the base model to record in the exported config; default:
        the source that the base model was imported from.
      rank: rank of the LoRA that --format peft writes for a delta or a composition of adapters, by
        singular value decomposition; default: the sum of the adapters' ranks, which is exact.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Returns:
      The path of the written directory.

    Raises:
      InputError: if the adapter does not exist or the library does not support it, the checkpoint
        is damaged, or the destination exists; no output is left behind then.
    """
    from t5x_lite.checkpoints import items
    from t5x_lite.checkpoints.reading import DELTA_FILE, step_files
    from t5x_lite.core.files import new_directory
    from t5x_lite.core.remote import local_path
    from t5x_lite.inference.loading import find_step, read_experiment
    from t5x_lite.interop.adapter_checkpoints import export_module, export_sum
    from t5x_lite.interop.sft import export_sft
    from t5x_lite.models.vector_heads import Role

    with trusting_checkpoints(trust_project):
        if format == "sft":
            if name is not None:
                raise InputError(
                    "--name is not supported with --format sft, which exports the complete "
                    "delta; remove --name"
                )
            if rank is not None or base_name is not None:
                raise InputError(
                    "--rank and --base-name are not supported with --format sft; set --format "
                    "peft, or remove these options"
                )
            return export_sft(source, destination, step=step, head=not no_head)
        where = Path(find_step(local_path(source, what="checkpoint"), step=step))
        items.verify(where, "params", "files")
        if rank is not None and format != "peft":
            raise InputError(f"--rank needs --format peft, but --format is {format!r}")
        target = Path(destination)
        if (where / "files" / DELTA_FILE).is_file():
            if format != "peft" or name is not None:
                raise InputError(
                    f"checkpoint {where} is a delta, which can be exported only as one PEFT "
                    "adapter; set --format peft and remove --name"
                )
            return export_sum(where, target, head=not no_head, base_name=base_name, rank=rank)
        files = step_files(where)
        experiment = read_experiment(where, files)
        several = bool(experiment.adapters.modules and experiment.objective.more_towers())
        with new_directory(target) if several else contextlib.nullcontext(target) as directory:
            for role in get_args(Role) if several else ("query",):
                export_module(
                    where,
                    directory / role if several else directory,
                    role,
                    files=files,
                    form=format,
                    name=name,
                    head=not no_head,
                    base_name=base_name,
                    rank=rank,
                )
    if several:
        roles = " and ".join(get_args(Role))
        _logger.info("%s: wrote one directory for each encoder of the retriever: %s", target, roles)
    return target


@command
def export_hf(
    source: Source,
    destination: Destination,
    *,
    step: Step = None,
    dtype: Dtype = "keep",
    part: Literal["model", "generator"] = "model",
    head: OptionalText = None,
    sentence_transformers: bool = False,
    pooling: OptionalPooling = None,
    normalize: bool | None = None,
    trust_project: bool = False,
) -> Path:
    """Write a checkpoint of a T5 or an encoder in the format of Hugging Face transformers.

    The command also writes README.md, a model card with task, base model, metrics, command and
    versions; add your license to it.

    Example:
        t5x-lite export hf work/run exported

    Args:
      source: work directory or checkpoint directory of the model.
      destination: output directory, which must be new or empty.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      dtype: data type of the written weights; "keep" keeps the data type of the source.
      part: model to export after training by replaced token detection: "model" for the
        discriminator, "generator" for the generator.
      head: head to export, for an encoder with several heads: mlm, rtd, classifier, choice, token,
        span, or none; default: the head that the training objective trains.
      sentence_transformers: also write files for sentence-transformers, which then returns the same
        vectors as `t5x-lite embed`; ignores --head, and writes the three heads of a BGE-M3.
      pooling: pooling of the vectors of --sentence-transformers, cls or mean; default: the
        checkpoint's setting, or mean if it has none.
      normalize: scale the vectors of --sentence-transformers to length 1; default: the checkpoint's
        setting, or True if it has none.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Returns:
      The path of the written directory.

    Raises:
      InputError: if the checkpoint is damaged or not a T5 or encoder, the options contradict each
        other, or the destination exists; no output is left behind then.
    """
    from t5x_lite.checkpoints import items
    from t5x_lite.checkpoints.reading import lazy_params, step_files
    from t5x_lite.core.files import new_directory
    from t5x_lite.core.remote import local_path
    from t5x_lite.inference.loading import find_step, read_experiment
    from t5x_lite.inference.text_encoder import Vectors, dense_head
    from t5x_lite.interop import hf_export
    from t5x_lite.interop.hf_export import origin_of, write_card
    from t5x_lite.models.encoder import is_encoder
    from t5x_lite.models.vector_heads import Dense, Role

    if not sentence_transformers and (pooling is not None or normalize is not None):
        raise InputError("--pooling and --normalize need --sentence-transformers, which is not set")
    if sentence_transformers and part != "model":
        raise InputError(
            f"--sentence-transformers exports the model, but --part is {part!r}; remove one of "
            "the two options"
        )
    with trusting_checkpoints(trust_project), contextlib.ExitStack() as stack:
        where = Path(find_step(local_path(source, what="checkpoint"), step=step))
        items.verify(where, "params", "files")
        directory = stack.enter_context(new_directory(destination))
        files = step_files(where)
        experiment = read_experiment(where, files)
        origin = origin_of(where, files, experiment)
        has_modules = bool(experiment.adapters.modules)
        saved = hf_export.merged(where, experiment) if has_modules else lazy_params(where)

        def vectors() -> Dense | None:
            if not sentence_transformers:
                return None
            how = Vectors.of(experiment, pooling=pooling, normalize=normalize)
            known = dense_head(experiment) or Dense()
            return dataclasses.replace(known, pooling=how.pooling, normalize=how.normalize)

        if is_encoder(experiment.model):
            sentences = vectors()
            roles = hf_export.roles_of(experiment, projections=sentence_transformers)
            for role in roles or get_args(Role)[:1]:
                alone, params = hf_export.of_role(experiment, saved, role)
                target = directory / f"{role}_model" if roles else directory
                target.mkdir(exist_ok=True)
                hf_export.export_encoder(
                    *(where, files, alone, params, target),
                    part=part,
                    dtype=dtype,
                    head=head,
                    sentences=sentences,
                    role=role,
                )
                write_card(target, origin, alone)
        else:
            wanted = {"sentence_transformers": sentence_transformers, "part": part, "head": head}
            hf_export.refuse_of_t5(where, experiment, **wanted)
            hf_export.export_t5(where, files, experiment, saved, directory, dtype=dtype)
            if (sentences := vectors()) is not None:
                hf_export.write_sentences(directory, sentences, experiment, saved, dtype=dtype)
            write_card(directory, origin, experiment)
    _logger.info("%s: exported checkpoint %s, with a model card in README.md", destination, where)
    return Path(destination)


@command
def export_stablehlo(
    source: Source,
    destination: Destination,
    *,
    step: Step = None,
    base: OptionalDirectory = None,
    adapters: Modules = ALL_MODULES,
    inputs_length: OptionalPositive = None,
    max_decode_length: OptionalPositive = None,
    pooling: OptionalPooling = None,
    normalize: bool | None = None,
    dimensions: OptionalPositive = None,
    compute_dtype: Literal["float32", "bfloat16"] | None = None,
    platforms: Platforms = ("cpu", "cuda", "tpu"),
    trust_project: bool = False,
) -> Path:
    """Write the functions of a model as StableHLO, which JAX runs without this package.

    A model that generates text has the functions generate (greedy decoding) and score. An encoder
    has a function for each head that predicts for texts. It also has embed without such a head,
    with a head for vectors, or with one of the options --pooling, --normalize and --dimensions. The
    directory also contains the weights, the tokenizer, and stablehlo.json, which describes inputs
    and outputs.

    Example:
        t5x-lite export stablehlo work/encoder exported

    Args:
      source: work directory or checkpoint directory of the model.
      destination: output directory, which must be new or empty.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      base: directory of the base model, for a checkpoint that stores only its trained parameters;
        default: the base directory recorded in the checkpoint.
      adapters: names of the checkpoint's adapters to use; default: the adapters used in training.
      inputs_length: maximum number of tokens of an input; generate and DeBERTa models take only
        inputs padded to this length; default: the length in the checkpoint's config.
      max_decode_length: maximum number of tokens that the function generate produces; default: 64.
      pooling: pooling of hidden states into a vector: "cls" takes the [CLS] hidden state, "mean"
        averages all hidden states; default: the checkpoint's setting, or mean with a warning.
      normalize: scale vectors to length 1; default: the checkpoint's setting, or True if it has
        none.
      dimensions: number of leading dimensions of each vector to keep, for models trained with a
        Matryoshka loss; default: all.
      compute_dtype: data type of the activations; default: the data type used in training.
      platforms: platforms to compile for: cpu, cuda, rocm or tpu; their devices are not needed.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Returns:
      The path of the written directory.

    Raises:
      InputError: if the checkpoint is damaged, the model does not support an option, or the
        destination exists; no output is left behind then.
    """
    from t5x_lite.checkpoints.init import base_at
    from t5x_lite.core.files import new_directory
    from t5x_lite.inference.checkpoint import Checkpoint
    from t5x_lite.interop import hf_export

    if not platforms:
        raise InputError("--platforms needs at least one platform, such as cpu")
    with (
        trusting_checkpoints(trust_project),
        base_at(base),
        new_directory(destination) as directory,
    ):
        model = Checkpoint.load(
            [str(source)],
            step=step,
            use=adapters.use,
            inputs_length=inputs_length,
            compute_dtype=compute_dtype,
        )
        functions = hf_export.exported_functions(
            model,
            max_decode_length=max_decode_length,
            pooling=pooling,
            normalize=normalize,
            dimensions=dimensions,
        )
        hf_export.export_stablehlo(model, functions, directory, platforms=platforms)
    _logger.info("%s: exported the functions %s", destination, ", ".join(functions))
    return Path(destination)


@command
def push(
    source: Source,
    repository: Repository,
    *,
    private: bool = False,
    message: OptionalText = None,
    dry_run: bool = False,
) -> str | None:
    """Upload an exported model to the Hugging Face Hub.

    Log in first by `hf auth login`, or set the environment variable HF_TOKEN.

    Example:
        t5x-lite push exported me/my-t5 --dry-run

    Args:
      source: directory that `t5x-lite export` wrote.
      repository: name ORG/NAME at the Hugging Face Hub; a missing repository is created.
      private: make a new repository private.
      message: commit message of the upload; default: "Upload by t5x-lite".
      dry_run: list the files to upload without uploading them.

    Returns:
      The URL of the commit; None for a dry run.

    Raises:
      InputError: if the directory is not an exported model, the name is not valid, the extra "hub"
        is not installed, or the hub rejects the upload.
    """
    from t5x_lite.interop.hf_export import CARD
    from t5x_lite.interop.hub import is_hub_id
    from t5x_lite.report.c4 import size

    files = exported_files(Path(source))
    if not is_hub_id(repository) or repository.count("/") != 1:
        raise InputError(
            f"{repository!r} is not a repository name at the Hugging Face Hub; give ORG/NAME"
        )
    for name, number in files.items():
        _logger.info("%10s  %s", size(number), name)
    total = f"{len(files)} files, {size(sum(files.values()))}"
    if CARD not in files:
        _logger.warning(
            "directory %s has no file %s, so the hub will show no model card", source, CARD
        )
    elif "\n# license:" in f"\n{(Path(source) / CARD).read_text(encoding='utf-8')}":
        _logger.warning(
            "file %s/%s contains no license; add a license to the metadata header of the file",
            source,
            CARD,
        )
    if dry_run:
        kind = "private" if private else "public"
        _logger.info(
            "dry run: the upload would send %s to %s (a %s repository if it is new)",
            total,
            repository,
            kind,
        )
        return None
    if importlib.util.find_spec("huggingface_hub") is None:
        raise InputError(
            "`t5x-lite push` requires the package huggingface_hub, which is missing; run "
            f"{install_command('hub')}, or `hf upload {repository} {source}`"
        )
    address = _upload(
        Path(source), repository, private=private, message=message or "Upload by t5x-lite"
    )
    _logger.info("uploaded %s", total)
    print(address)
    return address


def exported_files(directory: Path) -> Mapping[str, int]:
    """Return the size in bytes of each file that `t5x-lite export` wrote to a directory.

    Raises:
      InputError: if the directory does not exist, or `t5x-lite export` did not write it.
    """
    if not directory.is_dir():
        raise InputError(f"directory {directory} does not exist")
    if any((directory / name).is_dir() for name in _OF_CHECKPOINT):
        raise InputError(
            f"{directory} is a checkpoint of t5x_lite, but `t5x-lite push` requires an exported "
            f"model; run `t5x-lite export hf {directory} DIR` and push DIR"
        )
    has_weights = any(True for pattern in _WEIGHTS for _ in directory.glob(pattern))
    if not has_weights or not any((directory / name).is_file() for name in _EXPORTED):
        raise InputError(
            f"{directory} contains no exported model (config.json and model.safetensors); give "
            "a directory that `t5x-lite export` wrote"
        )
    return {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(directory).parts)
    }


def _upload(directory: Path, repository: str, *, private: bool, message: str) -> str:
    import huggingface_hub

    api: Any = huggingface_hub.HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=str(directory),
            commit_message=message,
            ignore_patterns=[".*", "**/.*"],
        )
    except Exception as error:  # whatever the transport raises
        raise InputError(
            f"the hub rejected the upload to {repository} ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}); log in by `hf auth login` with a token "
            "that may write to the repository"
        ) from error
    return str(getattr(commit, "commit_url", commit))
