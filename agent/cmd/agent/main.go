// Command agent is PID 1 of a sandbox's workspace container, and the far end of its one stream.
package main

import (
	"os"

	"sandbox-operator.dev/agent/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
