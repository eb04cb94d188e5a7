"""yaml-language-server over its standard streams: as much of the protocol as it takes to ask about a file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Message = dict[str, Any]


class LanguageServer:
    """A running server that checks every `*.yml` against one schema."""

    def __init__(self, command: Sequence[str], schema: Path) -> None:
        self.process = subprocess.Popen([*command, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        of_yaml = {"schemas": {schema.as_uri(): "*.yml"}, "validate": True, "completion": True, "hover": True}
        self.settings = {"yaml": {**of_yaml, "schemaStore": {"enable": False}}}
        self.number = 0
        abilities = {"workspace": {"configuration": True, "didChangeConfiguration": {}}}
        self.ask("initialize", {"processId": None, "rootUri": None, "capabilities": abilities})
        self.tell("initialized", {})
        self.tell("workspace/didChangeConfiguration", {"settings": self.settings})

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()

    def problems(self, name: str, text: str) -> list[tuple[int, str]]:
        """Open a file; (line from 1, message) of everything underlined in it."""
        uri = f"file:///{name}.yml"
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self.tell("textDocument/didOpen", {"textDocument": document})
        found = self.receive(
            lambda message: (
                message.get("method") == "textDocument/publishDiagnostics" and message["params"]["uri"] == uri
            )
        )["params"]["diagnostics"]
        return sorted((problem["range"]["start"]["line"] + 1, problem["message"]) for problem in found)

    def hover(self, name: str, line: int, column: int) -> str:
        """What is shown over a place of an open file, both from 1."""
        return str(self.at("hover", name, line, column)["contents"]["value"]).replace("\\_", "_")

    def completions(self, name: str, line: int, column: int) -> set[str]:
        """What is offered there."""
        found = self.at("completion", name, line, column)
        return {item["label"] for item in found["items"]}

    def at(self, what: str, name: str, line: int, column: int) -> Any:
        """Ask about a place of an open file."""
        position = {"line": line - 1, "character": column - 1}
        return self.ask(f"textDocument/{what}", {"textDocument": {"uri": f"file:///{name}.yml"}, "position": position})

    def ask(self, method: str, params: Any) -> Any:
        """Send a request and return its result."""
        self.number += 1
        number = self.number
        self.send({"id": number, "method": method, "params": params})
        return self.receive(lambda message: message.get("id") == number and "method" not in message)["result"]

    def tell(self, method: str, params: Any) -> None:
        """Send what has no answer."""
        self.send({"method": method, "params": params})

    def send(self, message: Message) -> None:
        """Write one message."""
        assert self.process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def receive(self, wanted: Callable[[Message], bool]) -> Message:
        """Read up to the message that is `wanted`, answering what the server asks meanwhile."""
        while True:
            message = self.read()
            if "method" in message and "id" in message:
                items = message["params"]["items"] if message["method"] == "workspace/configuration" else []
                self.send({"id": message["id"], "result": [self.settings.get(item["section"]) for item in items]})
            if wanted(message):
                return message

    def read(self) -> Message:
        """Read one message."""
        assert self.process.stdout is not None
        length = 0
        while line := self.process.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        assert length, "the server ended"
        message: Message = json.loads(self.process.stdout.read(length))
        return message
