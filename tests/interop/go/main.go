// Command interop drives the Go client of RocketMQ against a server: `interop COMMAND key=value...`.
// Each result is printed as one line `RESULT {...}`; on failure the exit code is 1 and the reason is printed.
package main

import (
	"fmt"
	"os"
)

var commands = map[string]func(Options) error{
	"send":        send,
	"consume":     consume,
	"transaction": transaction,
	"pull":        pull,
	"poll":        poll,
	"request":     request,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
}

func run(words []string) error {
	if len(words) == 0 {
		return fmt.Errorf("no command")
	}
	command, known := commands[words[0]]
	if !known {
		return fmt.Errorf("unknown command %q", words[0])
	}
	options, err := parseOptions(words[1:])
	if err != nil {
		return err
	}
	if err := command(options); err != nil {
		return err
	}
	report(Fact{"done": words[0]})
	return nil
}
