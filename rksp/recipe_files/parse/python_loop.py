"""Training scripts with a loop of their own: what they build, in sections of settings.

An optimizer, a schedule, a clipping norm, a loader, adapters, a model and an accelerator count with
what their calls are given, before what the script's names and options say. Nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable

from rksp.models.names import is_type
from rksp.recipe.optimizers.table import optimizer_named
from rksp.recipe_files.parse.python_script import Call, Script
from rksp.recipe_files.parse.python_values import ANY, called
from rksp.recipe_files.parse.values import Parsed, Section, Unresolved, as_section, section_in

OPTIMIZERS = "optimizers"  # key of the optimizers that are built
OPTIONS = "args"  # key of the options of a command line
NAMES = "names()"  # key of the names that a script defines and calls, as one text
BY_HAND = "by_hand()"  # key that is there if a script sets the rate of its groups itself
WORDS = "words()"  # key of all identifiers of a script, as one text
ADAPTED = "adapted()"  # key of a word of adapters that a trainer's script names, and builds none
ABOUT = (NAMES, WORDS, BY_HAND, ADAPTED)  # what is told of a script, and is no setting
_FIRST = ("", "model")  # sections in which what was said first stays
PEFT = "peft_config"  # key of the adapters, by the name of the call that makes them
_SECTIONS = (OPTIMIZERS, PEFT, "lr_scheduler", "clip_grad_norm_", "accelerator", "autocast",
             "loader", "model", "model_config")  # fmt: skip
_NO_OPTIMIZER = re.compile(
    r"(Config|Args|Arguments|Wrapper|Callback|Classifier|Regressor|LR)$|[Ss]chedule"
)
_SCHEDULE = re.compile(r"^\w+LR$|_schedule(_|$)|^get_\w+_with_warmup$|^\w+_decay$|^get_scheduler$")
_SECOND = re.compile(r"critic|value_|discrim|teacher|_ema|net_?d\b|probe", re.I)
_NOT_TRAINED = re.compile(r"ref|reward|judge|eval|val|test", re.I)
_MODEL = re.compile(r"Model|For[A-Z]|Transformer|CrossEncoder")
_SENTENCES = ("SentenceTransformer", "CrossEncoder")
_NO_MODEL = re.compile(r"Tokenizer|Processor|Extractor|Config")
_MODEL_NAMES = ("model_name", "pretrained_model_name_or_path", "model_name_or_path", "model")
_OF_LOADING = ("torch_dtype", "dtype", "attn_implementation")
_OBJECTIVES = (
    (r"(Sequence|Image|Token|Audio|Video)Classification|MultipleChoice", "classification"),
    (r"MaskedLM", "mlm"),
    (r"Seq2SeqLM|ForConditionalGeneration", "seq2seq"),
    (r"SentenceTransformer|CrossEncoder|For(?!CausalLM)[A-Z]", "other"),
)
_ADAPTERS = re.compile(
    r"^(Lora|IA3|PromptTuning|PrefixTuning|AdaLora|LoHa|LoKr|Vera|OFT|BOFT|FourierFT)Config$"
)
OF_ADAPTERS = re.compile(r"(?<![a-z])(lora|peft|reft|adapters?|ia3|(prompt|prefix)_tuning)")
_USUAL = {"r": 8, "lora_alpha": 8}  # of PEFT's LoraConfig
_OTHERS = re.compile(
    r"clip_grad_norm_?$|clip_by_global_norm$|LR$|_schedule(_|$)|_with_warmup$|_decay$|get_scheduler$"
    r"|configure_optimizers$"
    r"|[Dd]ata_?[Ll]oader|(autocast|Accelerator)$"
)
_LOADER = re.compile(r"data_?loader", re.I)
_RATES = ("lr", "learning_rate")
_TRAINS = re.compile(r"\b(backward|step|value_and_grad|apply_gradients|training_step)( |$)")


class Parts:
    """What the calls of a script build, in sections of settings; of a trainer's script, in none.

    Attributes:
        data: The settings.
        lines: Dotted key → its line.
    """

    def __init__(self, calls: Iterable[Call], *, home: str = "model") -> None:
        self.data: dict[str, Parsed] = {}
        self.lines: dict[str, int] = {}
        self._home = home  # of the model's name
        self._calls = list(calls)
        self._taken: Counter[str] = Counter()

    def keep(self, call: Call, section: str, given: Section) -> None:
        """Keep arguments of a call in a section; what another call gives otherwise is not known.

        Of a model and of arguments what was said first stays.
        """
        home, start = self.data, f"{section}." if section else ""
        for part in section.split(".") if section else ():
            home = section_in(home, part)
        if call.line and section:
            self.lines.setdefault(section, call.line)
        for name, value in given.items():
            parts = value if isinstance(value, list) else [value]
            value = next((one for one in parts if isinstance(one, Unresolved)), value)
            if name == ANY or (value is None and section) or (name in home and section in _FIRST):
                continue
            if home.setdefault(name, value) != value:
                home[name] = Unresolved(f"{start}{name}, which two calls give otherwise")
            if line := call.lines.get(name, call.line):
                self.lines.setdefault(f"{start}{name}", line)

    def adapters(self) -> None:
        """Keep the first adapters of PEFT, or of Unsloth's function, as Transformers logs them."""
        for call in self._calls:
            is_unsloth = call.short == "get_peft_model" and "r" in call.given
            made = _ADAPTERS.match("LoraConfig" if is_unsloth else call.short)
            kept = as_section(self.data.get(PEFT, {call.short: 0}))
            if made is not None and kept.keys() == {call.short}:
                usual = _USUAL if made[1] == "Lora" else {}
                settings = {"peft_type": made[1].upper(), **usual, **call.given}
                self.keep(call, f"{PEFT}.{call.short}", settings)

    def model(self) -> None:
        """Keep the weights that are loaded, and how; else the sizes of a model that is made."""
        for call in self._calls:
            loads = "from_pretrained" in call.name or call.short in _SENTENCES
            is_model = loads and _MODEL.search(call.name) and not _NO_MODEL.search(call.name)
            is_second = _SECOND.search(f"{call.of} {call.target}")
            is_other = is_second or _NOT_TRAINED.search(call.target)
            is_given = call.short.endswith("Trainer") and "model" in call.given
            if call.short == "BitsAndBytesConfig":
                self._four_bits(call)
            elif (is_model and not is_other) or is_given:
                self._load(call)
        loaded = as_section(self.data.get(self._home, self.data))
        for call in self._calls:
            kind = call.short.removesuffix("Config").lower()
            is_made = kind != call.short.lower() and is_type(kind)
            if is_made and "model_name_or_path" not in loaded:
                self.keep(call, "model_config", {"_call": call.short, **call.given})

    def _load(self, call: Call) -> None:
        name = next((call.given[key] for key in _MODEL_NAMES if key in call.given), call.first)
        if isinstance(name, str) or (self._home and isinstance(name, Unresolved)):
            self.keep(call, self._home, {"model_name_or_path": name})
        if not self._home:
            self.keep(call, "", {key: call.given[key] for key in _OF_LOADING if key in call.given})
        if call.name.startswith("Fast"):  # Unsloth's, which loads 4 bits unless told otherwise
            self.keep(call, "", {"load_in_4bit": call.given.get("load_in_4bit", True)})
            self.keep(call, "", {"use_unsloth": True})
        self._four_bits(call)
        for pattern, objective in _OBJECTIVES:
            if re.search(pattern, call.name):
                self.keep(call, "", {"objective": objective})

    def _four_bits(self, call: Call) -> None:
        if PEFT in self.data and "load_in_4bit" in call.given:
            self.keep(call, "", {"load_in_4bit": call.given["load_in_4bit"]})


class _Loop(Parts):
    @property
    def _is_sequence(self) -> bool:
        return any(call.short == "SequentialLR" for call in self._calls)

    def _call_it(self, call: Call, name: Parsed) -> None:
        if call.target not in _SECTIONS:
            self.data[call.target or call.short] = name

    def read(self, call: Call) -> None:
        short, given, about = call.short, call.given, f"{call.of} {call.target}"
        is_second = _SECOND.search(about) is not None
        if short in ("clip_grad_norm_", "clip_grad_norm", "clip_by_global_norm"):
            norm = given.get("max_norm", call.plain[-1] if call.plain else None)
            if len(call.plain) > 1 or "max_norm" in given or short == "clip_by_global_norm":
                self.keep(call, "clip_grad_norm_", {"max_norm": norm})
        elif _SCHEDULE.search(short) and (call.plain or given):
            if short in ("LinearLR", "ConstantLR") and self._is_sequence:
                self.keep(call, "lr_scheduler", {"warmup_steps": given.get("total_iters")})
            elif not is_second and short != "SequentialLR":
                named = given.get("name", call.first) if short == "get_scheduler" else short
                self._call_it(call, named)
                self.keep(call, "lr_scheduler", {"name": named, **given})
        elif short == "Accelerator":
            self.keep(call, "accelerator", given)
        elif short == "autocast":
            off = given.get("enabled", True) is False
            dtype = given.get("dtype", next((p for p in call.plain[1:]), "fp16"))
            self.keep(call, "autocast", {"dtype": "fp32" if off else dtype})
        elif _LOADER.search(short):
            if not _NOT_TRAINED.search(about):
                usual = {"batch_size": [*call.plain[1:], 1][0]} if short == "DataLoader" else {}
                self.keep(call, "loader", {**usual, **given})
        elif short == "configure_optimizers":
            self._call_it(call, None)
            if not given.keys().isdisjoint(_RATES):
                self.keep(call, f"{OPTIMIZERS}.{short}", given)
        elif may_be_optimizer(call.name) and _steps(call):
            self._taken[short] += 1
            self._call_it(call, short)
            label = f"{short} {self._taken[short]}" if self._taken[short] > 1 else short
            rate = {"lr": call.plain[1]} if len(call.plain) > 1 else {}
            if not rate and call.name.startswith("optax.") and call.plain:
                rate = {"lr": call.first}
            of = "critic." if is_second else ""
            self.keep(call, f"{OPTIMIZERS}.{of}{label}", {**rate, **given})


def builds(name: str) -> bool:
    """Tell whether a call of this name may build a part of a loop."""
    return _OTHERS.search(name) is not None or may_be_optimizer(name)


def may_be_optimizer(name: str) -> bool:
    """Tell whether a name is that of an optimizer that rksp knows, or much like it."""
    path, _, short = name.rpartition(".")
    is_one = short[:1].isupper() or path.rpartition(".")[2] in ("optax", "optim")
    is_other = _NO_OPTIMIZER.search(name.removesuffix("Config"))  # `AdamWConfig` makes one later
    return is_one and not is_other and optimizer_named(short)[0] is not None


def _steps(call: Call) -> bool:
    is_given = not call.given.keys().isdisjoint(_RATES) or "param" in call.of.lower()
    return is_given or (bool(call.plain or call.given) and "opt" in call.name + call.target)


def read_loop(script: Script) -> tuple[dict[str, Parsed], dict[str, int]]:
    """Return the settings of a script with its own loop, and the line of each dotted key."""
    loop, names = _Loop(script.found), script.names
    loop.adapters()
    loop.model()
    for call in script.found:
        loop.read(call)
    if names.options:
        loop.data[OPTIONS] = names.options
        loop.lines |= {f"{OPTIONS}.{name}": line for name, line in names.lines.items()}
    mentioned = names_in(names.nodes)
    if any(map(_sets_rate, names.nodes)):
        loop.data[BY_HAND] = True
    if OPTIMIZERS in loop.data or _TRAINS.search(mentioned):
        loop.data |= {NAMES: mentioned, WORDS: words_in(names.nodes)}
    return loop.data, loop.lines


def _sets_rate(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Subscript) and getattr(target.slice, "value", None) == "lr"
        and "group" in ast.unparse(target.value) for target in node.targets
    )  # fmt: skip


def names_in(nodes: list[ast.AST]) -> str:
    """Return the names that a script defines and calls, as one text."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Call):
            names.add(called(node))
    return " ".join(sorted(names))


def words_in(nodes: list[ast.AST]) -> str:
    """Return all identifiers of a script, and short texts in it, as one text."""
    words = set()
    for node in nodes:
        for part in ("id", "attr", "arg", "name", "module", "value"):
            word = getattr(node, part, None)
            if isinstance(word, str) and len(word) < _LONGEST_WORD:
                words.add(word)
    return " ".join(sorted(words))


_LONGEST_WORD = 40
