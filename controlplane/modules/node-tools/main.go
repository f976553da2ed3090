// The programs of the image "busybox": a shell and the few commands that tests run in containers of the
// real node, in one static binary. It does what the name it is called by says, as busybox does.
//
// Unlike busybox it ends at SIGTERM even as process 1 of a container, so pods end at once.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

func main() {
	name, words := filepath.Base(os.Args[0]), os.Args[1:]
	if err := run(name, words); err != nil {
		var status interp.ExitStatus
		if errors.As(err, &status) {
			os.Exit(int(status))
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func run(name string, words []string) error {
	switch name {
	case "sh":
		return shell(words)
	case "sleep":
		return sleep(words)
	case "cat":
		return cat(words)
	case "echo":
		fmt.Println(strings.Join(words, " "))
		return nil
	case "env", "printenv":
		return printenv(words)
	case "ls":
		return ls(words)
	case "pause":
		for {
			time.Sleep(time.Hour)
		}
	case "hostname":
		host, err := os.Hostname()
		fmt.Println(host)
		return err
	case "true":
		return nil
	case "false":
		return interp.ExitStatus(1)
	}
	return errors.New("no such program here")
}

// shell runs `sh -c SCRIPT [NAME [ARGUMENT...]]` or `sh FILE [ARGUMENT...]`.
func shell(words []string) error {
	script, name, rest := io.Reader(os.Stdin), "sh", words
	if len(words) >= 2 && words[0] == "-c" {
		script, rest = strings.NewReader(words[1]), words[2:]
		if len(rest) > 0 {
			name, rest = rest[0], rest[1:]
		}
	} else if len(words) >= 1 {
		file, err := os.Open(words[0])
		if err != nil {
			return err
		}
		defer file.Close()
		script, name, rest = file, words[0], words[1:]
	}
	program, err := syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(script, name)
	if err != nil {
		return err
	}
	runner, err := interp.New(
		interp.StdIO(os.Stdin, os.Stdout, os.Stderr),
		interp.Params(append([]string{"--"}, rest...)...),
	)
	if err != nil {
		return err
	}
	return runner.Run(context.Background(), program)
}

// sleep waits for a number of seconds, for a time with a unit (90s, 2m), or forever: `sleep infinity`.
func sleep(words []string) error {
	if len(words) != 1 {
		return errors.New("one time is needed")
	}
	if words[0] == "infinity" {
		return run("pause", nil)
	}
	wanted := words[0]
	if strings.Trim(wanted, "0123456789.") == "" {
		wanted += "s"
	}
	duration, err := time.ParseDuration(wanted)
	time.Sleep(duration)
	return err
}

func cat(words []string) error {
	if len(words) == 0 {
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	}
	for _, word := range words {
		file, err := os.Open(word)
		if err != nil {
			return err
		}
		_, err = io.Copy(os.Stdout, file)
		file.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func printenv(words []string) error {
	if len(words) == 0 {
		for _, each := range os.Environ() {
			fmt.Println(each)
		}
		return nil
	}
	for _, word := range words {
		value, found := os.LookupEnv(word)
		if !found {
			return interp.ExitStatus(1)
		}
		fmt.Println(value)
	}
	return nil
}

func ls(words []string) error {
	if len(words) == 0 {
		words = []string{"."}
	}
	for _, word := range words {
		entries, err := os.ReadDir(word)
		if err != nil {
			return err
		}
		names := []string{}
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		sort.Strings(names)
		fmt.Println(strings.Join(names, "\n"))
	}
	return nil
}
