"""A stand-in for a language model that repairs the shop.

Each answer follows from what the tools really returned, so it says so where a repair does not work out.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall

MAX_TURNS = 12


@dataclass
class Repair:
    """Reads the task, runs the tests, mends what the traceback points at, runs them again, reports."""

    test_command: str = ""
    source: str = ""
    change: tuple[str, str] | None = None
    calls: int = 0
    results: list[str] = field(default_factory=list)
    step: str = "task"

    def answer(self, call: ModelCall) -> list[Any]:
        """Decide the next step by the output of the last one."""
        output = last_tool_output(call)
        match self.step:
            case "task":
                self.step = "tests"
                return [self.run("cat task.md")]
            case "tests":
                found = re.search(r"Run them with: `(.+)`", output)
                if not found:
                    return [assistant_message(f"The task names no test command:\n{output}")]
                self.test_command = found[1]
                self.step = "read"
                return [self.run(self.test_command)]
            case "read":
                self.results.append(summary(output))
                if exit_code(output) == 0:
                    return [assistant_message("The tests pass already; there is nothing to mend.")]
                failing = re.search(r"^FAILED test_(\w+\.py)::", output, re.MULTILINE)
                self.source = failing[1] if failing else ""
                if not self.source:
                    return [assistant_message(f"The tests fail, but I cannot tell where:\n{output}")]
                self.step = "patch"
                return [self.run(f"cat repo/{self.source}")]
            case "patch":
                lines = [line for line in output.splitlines() if "* percent" in line and "100" not in line]
                if not lines:
                    return [assistant_message(f"No line of {self.source} explains the failure:\n{output}")]
                self.change = (lines[0], lines[0].replace("* percent", "* percent // 100"))
                self.step = "verify"
                return [
                    self.patch(f"Update File: repo/{self.source}", f"@@\n-{lines[0]}\n+{self.change[1]}\n")
                ]
            case "verify":
                self.step = "report"
                return [self.run(self.test_command)]
            case "report":
                self.results.append(summary(output))
                if exit_code(output) != 0:
                    return [assistant_message(f"The change did not mend the tests:\n{output}")]
                self.step = "done"
                return [self.patch("Add File: report.md", self.report())]
            case _:
                return [assistant_message(f"The tests pass: {self.results[-1]}. The report is in report.md.")]

    def report(self) -> str:
        """The report, as added lines of a patch."""
        before, after = self.change or ("", "")
        text = (
            f"# Report\n\nBefore: {self.results[0]}.\n\n"
            f"`repo/{self.source}` took off the price times the percentage, not so many hundredths:\n\n"
            f"    - {before.strip()}\n    + {after.strip()}\n\nAfter: {self.results[-1]}.\n"
        )
        return "".join(f"+{line}\n" for line in text.splitlines())

    def run(self, command: str) -> Any:
        """A call of the shell tool."""
        return function_call("exec_command", {"cmd": command, "login": False}, call_id=self.call_id())

    def patch(self, header: str, hunks: str) -> Any:
        """A call of the apply_patch tool that changes one file."""
        text = f"*** Begin Patch\n*** {header}\n{hunks}*** End Patch"
        return ResponseCustomToolCall(
            type="custom_tool_call", name="apply_patch", input=text, call_id=self.call_id()
        )

    def call_id(self) -> str:
        """A fresh id for a tool call."""
        self.calls += 1
        return f"call-{self.calls}"


def last_tool_output(call: ModelCall) -> str:
    """The text that the latest tool call returned, empty at the start."""
    for item in reversed(call.input if isinstance(call.input, list) else []):
        output = item.get("output") if isinstance(item, dict) else None
        if output is not None:
            return output if isinstance(output, str) else json.dumps(output)
    return ""


def exit_code(output: str) -> int | None:
    """The exit code that the shell tool reports, None if the command is still running."""
    found = re.search(r"^Process exited with code (-?\d+)$", output, re.MULTILINE)
    return int(found[1]) if found else None


def summary(output: str) -> str:
    """Pytest's closing words, such as "2 failed, 1 passed"."""
    found = re.findall(r"^(?:=+ )?((?:\d+ \w+(?:, )?)+) in [\d.]+s", output, re.MULTILINE)
    return found[-1] if found else "no summary of the tests"


def scripted_model() -> ScriptedModel:
    """A model that plays one repair."""
    repair = Repair()
    return ScriptedModel([ModelStep.respond(repair.answer) for _ in range(MAX_TURNS)])
