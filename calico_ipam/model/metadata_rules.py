"""Rules for the metadata of resources: names, labels, annotations (cli §9.2 rule 9). Upstream's texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_DNS_1123 = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_DNS_1123}(\.{_DNS_1123})*")
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
LONGEST_NAME = 253
LONGEST_LABEL = 63
MOST_ANNOTATIONS = 256 * 1024  # bytes of all keys and values


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken rule: field, value (None: not quoted), reason, the way out."""

    field: str
    value: str | None
    reason: str
    hint: str = ""


def name_rules(name: str) -> Iterator[Broken]:
    if len(name) > LONGEST_NAME or not _SUBDOMAIN.fullmatch(name):
        yield Broken(
            "Metadata.Name",
            name,
            "name must consist of lower case alphanumeric characters, '-' or '.' "
            rf"(regex: {_DNS_1123}(\.{_DNS_1123})*)",
            f"Use lower-case letters, digits, '-' and '.', at most {LONGEST_NAME} characters.",
        )


def label_rules(labels: Mapping[str, str]) -> Iterator[Broken]:
    for key, value in labels.items():
        yield from _key_rules(key)
        if len(value) > LONGEST_LABEL:
            yield Broken(
                "Metadata.Labels (value)",
                value,
                f"must be no more than {LONGEST_LABEL} characters",
                "Shorten the value.",
            )
        elif not _LABEL_VALUE.fullmatch(value):
            yield Broken(
                "Metadata.Labels (value)",
                value,
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and "
                "must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex "
                "used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            )


def _key_rules(key: str) -> Iterator[Broken]:
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > LONGEST_NAME or not _SUBDOMAIN.fullmatch(prefix)):
        yield Broken("Metadata.Labels (label)", key, "prefix part must be a DNS-1123 subdomain")
    if not name or len(name) > LONGEST_LABEL:
        yield Broken(
            "Metadata.Labels (label)", key, f"name part must be non-empty and no more than {LONGEST_LABEL} characters"
        )
    elif not re.fullmatch(_QUALIFIED, name):
        yield Broken(
            "Metadata.Labels (label)",
            key,
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
            "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            f"'{_QUALIFIED}')",
            "Use letters, digits, '-', '_' and '.' in label keys.",
        )


def annotation_rules(annotations: Mapping[str, str]) -> Iterator[Broken]:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MOST_ANNOTATIONS:
        yield Broken(
            "Metadata.Annotations",
            None,
            f"annotations size {size} is larger than limit {MOST_ANNOTATIONS}",
            "Store less in annotations.",
        )
