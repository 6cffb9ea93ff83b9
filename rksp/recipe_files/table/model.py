"""The model of a run: a name that the table of models, a type or a file resolves, or sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rksp.ground.model import definite
from rksp.models.names import Published, is_hub_id, is_type, published, published_like
from rksp.recipe import PREFERENCES, REINFORCED
from rksp.recipe_files.parse.document import Document, FoundText
from rksp.recipe_files.parse.places import beside, folders_above
from rksp.recipe_files.parse.python_loop import WORDS
from rksp.recipe_files.parse.values import Parsed, Section, Unresolved
from rksp.recipe_files.table import convert
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import shape_of, shape_published
from rksp.recipe_files.table.reader import foreign_format
from rksp.recipe_files.table.spellings import Names, is_on, number, plain, spelt, texts, units

_BLOCKS = re.compile(r"rwkv|mamba|ssm|hyena|lstm|(^|_)gru|retnet|recurrent|conv(?!erter|ert)")
_NAMING = re.compile(  # keys that may name the model that is trained
    r"^(?!.*(data|output|save|log|reward|judge|repo|vision|image|clip|tower|encoder|vae|audio|hub"
    r"|push|run_|experiment|project)).*"
    r"(model|llm|weights|checkpoint|ckpt|pretrained|base|load|policy|student)"
)
_CLASS = re.compile(r"(LMHead)?(For[A-Z]\w+|Model)$")
_OF_DECODERS = ("lm", "distillation", *PREFERENCES, *REINFORCED)
_GENERIC = re.compile(r"gpt|llama|causal|decoder|^transformer|^(lm|dense)$")  # said of both types
_OTHER_NET = re.compile(r"rwkv|mamba|hyena|retnet|lstm")
_OTHER_NAME = re.compile(r"bert|t5|bart|vit|resnet|cnn|seq2seq|encoder|" + _OTHER_NET.pattern)
_CALLED = re.compile(r"^(?!.*token).*name")
_STARTED = re.compile(
    r"pre_?train(ed)?_(checkpoint|ckpt|weights|path|dir|model|from)|(^|\.)(load|finetune)$"
)
_TEXT = re.compile(r"vocab|token|text|lang|seq|context|ctx|block|gpt|llama|lm\b|max_len|corpus")
_STATES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".h5")  # of files that name no model
_OF_PARTS = ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
_GPT2_WORDS = re.compile(r"layer_?norm|learned|gelu")
_LLAMA_WORDS = re.compile(r"rms|rope|rotary|swi_?glu|silu|ge_?glu")
_VARIANTS = {"variant", "model_size", "model_variant"}
_ASSUMED = {"num_attention_heads": "heads", "intermediate_size": "feed-forward",
            "vocab_size": "vocabulary"}  # fmt: skip
_HEAD_WIDTH = 64  # of models that do not say how many heads they have


def model(draft: Draft, names: Names | None = None) -> None:
    """Set the model: a name of weights that resolves, sizes, a type, or the tokenizer's model."""
    names = names or Names(draft.document)
    foreign = foreign_format(draft.document)
    if foreign is not None and foreign[2] == "typed":
        draft.no_target(f"it is {foreign[0]}, which builds its own model; name a TARGET.")
        return
    said = names.find(spelt("model", "names"))
    named = [one for one in texts(said) if not one.value.endswith(_STATES)]
    is_scratch = any(is_on(one.value) for one in names.find(spelt("model", "scratch"))) or any(
        one.value is False for one in names.find(spelt("model", "stored"))
    )
    weights = next((one for one in named if _resolves(draft, one.value)), None)
    if weights is None and not any(_is_open(one.value) for one in said):
        likely = reversed(texts(names.like(_NAMING)))
        others = {known.id: one for one in likely if (known := _known(one.value)) is not None}
        if len(others) > 1:
            second, first, *_ = (f"{one.key} names {one.value}" for one in others.values())
            draft.no_target(f"{first}, and {second}; name the one that is trained as TARGET.")
            return
        weights = next(iter(others.values()), None)
    is_alike = weights is None or published(weights.value) is None  # perhaps where it is stored
    is_alike = is_alike or weights not in said  # perhaps a type, with sizes of its own beside it
    if is_alike and _literal(draft, draft.document.data, ""):
        return
    if weights is not None:
        _weights(draft, weights, is_scratch)
        _resized(draft, weights)
        return
    is_tuned = draft.value("objective") in (*PREFERENCES, *REINFORCED)  # from trained weights
    is_own = is_tuned or draft.document.syntax == "shell"  # a program's own word may be a type
    types = [] if is_own else [*named, *texts(names.find(spelt("model", "type")))]
    has_path = any("/" in one.value for one in named)  # whose sizes stand there, and not here
    for one in types:
        if is_type(one.value) and not has_path:
            draft.look(one.key)
            if own := _sizes_beside(draft, one.key):
                draft.no_target(f"its {one.value} has its own sizes, such as {own}; name a TARGET.")
                return
            draft.describe(one.value, {})
            return
    hub = next((one for one in named if is_hub_id(one.value)), None)
    if hub is not None and hub.value.count("/") == 1 and hub.value[0].isalnum():
        _weights(draft, hub, is_scratch)  # the Hub's, though not in the table
        return
    is_script = WORDS in draft.document.data  # which builds another model than its tokenizer's
    last = [] if is_script else texts(names.find(spelt("model", "last")))
    guess = next((one for one in last if _resolves(draft, one.value)), None)
    if guess is not None:
        draft.look(guess.key)
        draft.describe(guess.value, {}, f"The model is that of {guess.key}; no other is named.")
        return
    hub = next((one for one in named if "/" in one.value), None)
    if hub is not None:
        _weights(draft, hub, is_scratch)
    elif draft.lacks_target:
        draft.no_target("no setting names a model that rksp knows, or gives its sizes.")


def _sizes_beside(draft: Draft, key: str) -> str:
    home = key.rpartition(".")[0]
    spellings = {word.rstrip("s") for word in spelt("shape")}
    words = _VARIANTS | (spellings if home else set())  # at the root sizes may be anything's
    inside = (one for one in draft.document.leaves() if one.startswith(f"{home}." if home else ""))
    return next((one for one in inside if plain(one.rpartition(".")[2]).rstrip("s") in words), "")


def _resized(draft: Draft, named: FoundText) -> None:
    """Set a published model with other sizes, where its section has some: no weights fit them."""
    row, home = shape_published(named.value), named.key.rpartition(".")[0]
    if row is None or not home:
        return
    kind, settings = row
    own = {
        setting: found.value
        for setting in ("num_hidden_layers", "hidden_size", "num_attention_heads")
        if (found := draft.document.find(f"{home}.{setting}")) is not None
        and found.value != settings.get(setting, found.value)
    }
    if own:
        draft.look(*(f"{home}.{setting}" for setting in own))
        draft.names_weights = False
        draft.describe(kind, {**settings, **own}, f"{named.value} with other sizes has no weights.")


def _weights(draft: Draft, found: FoundText, is_scratch: bool) -> None:
    draft.look(found.key)
    shape = shape_published(found.value) if is_scratch else None
    shape = shape or (None if _known(found.value) is not None else shape_of(found.value))
    if shape is not None:  # a trainer's own name of an architecture, not of weights
        draft.describe(*shape)
        return
    draft.names_weights = not is_scratch
    draft.describe(found.value, {})


def _is_open(value: Parsed) -> bool:
    return (
        isinstance(value, Unresolved) or str(value).startswith(("/…", "./…")) or "${" in str(value)
    )


def _known(name: str) -> Published | None:
    return published_like(name) or published(name)


def _resolves(draft: Draft, name: str) -> bool:
    if not name or "\n" in name or "$" in name or len(name) > 300:
        return False
    if _known(name) is not None or shape_of(name) is not None:
        return True
    there = beside(draft.document.path, f"{name}/config.json")
    return there is not None


def _literal(draft: Draft, data: Parsed, prefix: str) -> bool:
    if not isinstance(data, Mapping):
        return False
    inner = sorted(data.items(), key=lambda pair: "model" not in plain(str(pair[0])))
    elsewhere = spelt("elsewhere")
    for name, value in inner:
        is_own = plain(str(name)) not in elsewhere
        if is_own and _literal(draft, value, f"{prefix}{name}."):
            return True
    return _sized(draft, data, prefix)


def _sized(draft: Draft, data: Section, prefix: str) -> bool:
    """Describe a section by its sizes, or say why nothing has such blocks; False of another one."""
    sizes, used = _amounts(draft, data, prefix)
    needed = {"hidden_size", "num_hidden_layers"}
    if not prefix:  # of settings of all kinds, where a recurrent net has these two as well
        needed.add("num_attention_heads")
    if not needed <= sizes.keys():
        return False
    draft.seen.add(f"{prefix}_call")
    call = str(data.get("_call", "")).rpartition(".")[2].removesuffix("Config").lower()
    kind, said = _kind_said(data, call)
    is_flat = draft.document.syntax == "shell" and not prefix  # options of a program
    is_own = (is_flat or draft.document.syntax == "python") and used["hidden_size"] != "n_embd"
    is_other = draft.value("objective") not in _OF_DECODERS or (
        said and not _GENERIC.search(said.lower())
    )
    if is_own and not is_type(call):
        draft.no_target("its model is a class of the program's own; name a TARGET.")
    elif not (kind or prefix) and _TEXT.search(str(draft.document.leaves()).lower()) is None:
        draft.no_target("nothing says that the model of these sizes is one of text; name a TARGET.")
    elif differs := _differs(draft.document, data, prefix):
        draft.no_target(differs)
    elif not kind and is_other:
        of = f"is {said:.40}, which rksp does not know" if said else "is not said"
        draft.no_target(f"the kind of model of these sizes {of}; name a TARGET.")
    else:
        begun = (draft.document.find(x) for x in draft.document.leaves() if _STARTED.search(x))
        draft.names_weights = any(
            one is not None and (one.value is True or isinstance(one.value, str | Unresolved))
            for one in begun
        )
        is_gpt2 = used["hidden_size"] == "n_embd" or _looks_like_gpt2(data)
        _describe(draft, kind, sizes, prefix, is_gpt2=is_gpt2)
    return True


def _amounts(draft: Draft, data: Section, prefix: str) -> tuple[dict[str, int], dict[str, str]]:
    """Return the sizes of a section and of its parts, and how each was spelled."""
    known = {plain(str(name)): f"{prefix}{name}" for name in data}
    sizes: dict[str, int] = {}
    used: dict[str, str] = {}

    def take(setting: str, spelling: str) -> None:
        found = draft.document.find(known[spelling]) if spelling in known else None
        amount = None if found is None else number(found.value)
        if amount is not None and amount >= 1 and setting not in sizes:
            sizes[setting], used[setting] = int(amount), spelling
            draft.look(definite(found).key)

    for setting, spellings in units("shape").items():
        for spelling in spellings.split() if setting != "foreign" else ():
            take(setting, spelling)
    if used.get("hidden_size") != "hidden_dim":  # a second width is that of the feed-forward
        take("intermediate_size", "hidden_dim")
    parts = list(_parts(draft.document, data, prefix))
    for setting in _OF_PARTS:
        said = [key for key, one in parts if _is_size(key, one, setting)]
        if setting not in sizes and said:
            sizes[setting] = int(definite(number(dict(parts)[said[0]])))
            draft.look(*said)
    tied = [(f"{prefix}{name}", one) for name, one in data.items()] + parts
    for key, one in tied:
        if isinstance(one, bool) and _last(key) in spelt("model", "tied"):
            sizes["tie_word_embeddings"] = one
            draft.look(key)
    return sizes, used


def _is_size(key: str, value: Parsed, setting: str) -> bool:
    return _last(key) in spelt("shape", setting) and (number(value) or 0) >= 1


def _last(key: str) -> str:
    return plain(key.rpartition(".")[2])


def _kind_said(data: Section, call: str) -> tuple[str, str]:
    """Return the type of transformers that a section names, if any, and its own word for it."""
    known = {plain(str(name)): one for name, one in data.items()}
    said = str(
        next((known[one] for one in ("model_type", "type", "arch", "model") if known.get(one)), "")
    )
    listed = known.get("architectures")
    names = listed if isinstance(listed, list) else []
    classes = [_CLASS.sub("", str(name)).lower() for name in names]
    words = (call, said.lower(), *classes)
    return next((one for one in words if one and is_type(one)), ""), said


def _differs(document: Document, data: Section, prefix: str) -> str:
    """Say what shows that no model of transformers has the blocks of these sizes; else ""."""
    known = {plain(str(name)): one for name, one in data.items()}
    parts = list(_parts(document, data, prefix))
    foreign = [one for one in spelt("shape", "foreign") if known.get(one)]
    foreign += [one for one in known if _BLOCKS.search(one) and is_on(known[one])]
    within = {_last(key): one for key, one in parts}
    foreign += [one for one in spelt("shape", "foreign") if is_on(within.get(one, 0))]
    if foreign or "layer" in known:
        what = (foreign or ["layer"])[0]
        return f"its blocks have {prefix}{what}; name a model with such blocks as TARGET."
    for setting in _OF_PARTS:
        said = {number(one): key for key, one in parts if _is_size(key, one, setting)}
        if len(said) > 1 and known.keys().isdisjoint(spelt("shape", setting)):
            first, second = list(said.items())[:2]
            return f"{first[1]} is {first[0]:g}, and {second[1]} is {second[0]:g}; name a TARGET."
    folders = [one.name.lower() for one in folders_above(document.path.resolve())]
    called = [one for name, one in known.items() if _CALLED.search(name) and isinstance(one, str)]
    if own := next((one for one in called if _OTHER_NAME.search(one.lower())), ""):
        return f"the kind of model of these sizes is {own:.40}; name a TARGET."
    other = next(filter(_OTHER_NET.search, folders), "")
    return f"it stands in {other}, whose blocks differ; name a TARGET." if other else ""


def _describe(
    draft: Draft, kind: str, sizes: dict[str, int], prefix: str, *, is_gpt2: bool
) -> None:
    is_read = not kind  # as one of two types, whose own defaults are of other sizes
    kind = kind or ("gpt2" if is_gpt2 and "num_key_value_heads" not in sizes else "llama")
    lacking = ", ".join(word for setting, word in _ASSUMED.items() if setting not in sizes)
    place = f"under {prefix.rstrip('.')}" if prefix else "in the file"
    note = f"The sizes {place} are read as those of {kind}"
    note += f"; what they do not give is assumed: {lacking}." if lacking else "."
    width, of_head = sizes["hidden_size"], sizes.get("head_dim", _HEAD_WIDTH)
    heads = sizes.setdefault("num_attention_heads", max(1, width // of_head))
    if kind == "gpt2":
        own = {k: v for k, v in sizes.items() if k not in ("num_key_value_heads", "head_dim")}
        draft.describe(kind, convert.as_gpt2(own), *([note] if lacking else []))
        return
    if kind == "llama":
        sizes.setdefault("num_key_value_heads", heads)
    if is_read:  # three matrices of a gated feed-forward have the weights of two of 4 × the width
        sizes.setdefault("intermediate_size", round(8 * width / 3))
    draft.describe(kind, sizes, note)


def _looks_like_gpt2(data: Section) -> bool:
    settings = [(str(key), one) for key, one in data.items()]
    settings += _within(data)
    said = " ".join(plain(one) for _, one in settings if isinstance(one, str))
    keys = " ".join(_last(key) for key, one in settings if not isinstance(one, str) and is_on(one))
    return bool(_GPT2_WORDS.search(said)) and not _LLAMA_WORDS.search(f"{said} {keys}")


def _parts(document: Document, data: Section, prefix: str) -> Iterator[tuple[str, Parsed]]:
    """Yield the settings of a model's parts; a section within the model's is one of them."""
    home = prefix.rstrip(".").rpartition(".")[0]
    around = document.find(home) if "model" in _last(home) else None
    if around is not None and isinstance(around.value, Mapping):
        data, prefix = around.value, f"{home}."
    yield from _within(data, prefix) if prefix else ()


def _within(data: Section | list[Parsed], prefix: str = "") -> Iterator[tuple[str, Parsed]]:
    """Yield the settings of the parts of a model, in lists too."""
    parts = data.items() if isinstance(data, Mapping) else enumerate(data)
    for name, value in parts:
        if isinstance(value, Mapping | list) and plain(str(name)) not in spelt("elsewhere"):
            inner = value.items() if isinstance(value, Mapping) else ()
            yield from ((f"{prefix}{name}.{key}", one) for key, one in inner)
            yield from _within(value, f"{prefix}{name}.")


def foreign_blocks(document: Document, asked: set[str]) -> str:
    """Return a setting of blocks that no reader asked for, where a model stands in its section."""
    for key in document.leaves():
        home, _, name = key.rpartition(".")
        if plain(home) != "model" or key in asked:
            continue
        is_foreign = plain(name) in spelt("shape", "foreign") or _BLOCKS.search(plain(name))
        found = document.find(key) if is_foreign else None
        if found is not None and is_on(found.value):
            return key
    return ""
