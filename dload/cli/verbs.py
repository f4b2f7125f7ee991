"""The verbs, by what people want, each with its line of help. A verb's module is loaded when it is called."""

from __future__ import annotations

SECTIONS = {
    "Begin": {
        "demo": "Commit, pin, stream and restore real files, in a folder that needs no setup.",
        "init": "Write the settings of this project or user.",
        "status": "Show the store, the cache and whether they can be reached.",
        "doctor": "Check settings, store, credentials, clock and disk.",
        "config": "Show each setting and where it came from.",
        "completion": "Print the completion script of a shell.",
    },
    "Write": {
        "commit": "Make a folder of files the latest version of a data set.",
        "append": "Put a folder of files behind the latest version.",
        "import": "Make WebDataset, Parquet, Hugging Face, MDS, JSONL ... data a data set.",
        "derive": "Run a pipeline once, and store its output for everybody.",
        "copy": "Copy a version to another store.",
    },
    "Read": {
        "ls": "List the data sets.",
        "info": "Show what a version holds, and the versions there are.",
        "head": "Show the first samples.",
        "cat": "Print a field of a sample.",
        "recipe": "Print the recipe that a version was made by.",
        "pull": "Bring a version into the cache, or back into a folder of files.",
        "export": "Write a version as WebDataset, Parquet, MDS, JSONL or files.",
        "cache": "Look after the local cache.",
    },
    "History": {
        "log": "Show what became latest when, and by whom.",
        "diff": "Show the samples that differ between two versions.",
        "revert": "Make an old version the latest again.",
        "tag": "Give a version a name, or list the names.",
        "untag": "Delete such a name.",
        "pin": "Write into dload.lock which version this project uses.",
        "unpin": "Take a data set out of dload.lock.",
    },
    "Clean up": {
        "rm": "Remove a data set, or versions of it.",
        "undo": "Take back a removal.",
        "verify": "Check what the store holds, and mend it.",
        "gc": "Delete the bytes that no version needs any more.",
    },
}

VERBS = {name: text for section in SECTIONS.values() for name, text in section.items()}
