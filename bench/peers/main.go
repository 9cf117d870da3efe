// Peers times what fluxkv is compared with: how long another engine takes to
// open a directory whose documents are all in its log. It is a module of its
// own, so that fluxkv itself depends on none of them.
//
//	peers restart --engine pebble --dir D --value-size N --documents M
//	peers open --engine pebble --dir D --value-size N --documents M --verify
//
// restart loads the documents into a new directory, syncs the log, and exits
// without closing, as a killed process would. open prints the seconds that
// opening took; it may change the directory, so each run needs a copy.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// load names the documents: keys and values follow from the index alone.
type load struct {
	dir       string
	documents uint64
	keyBytes  int
	valueSize int
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
	// No clean end: what an engine writes when it closes is never there after
	// a kill.
	os.Exit(0)
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want a command: restart or open")
	}
	command := args[0]
	var l load
	var engine string
	var verify bool
	flags := flag.NewFlagSet("peers "+command, flag.ExitOnError)
	flags.StringVar(&engine, "engine", "pebble", "the engine: pebble")
	flags.StringVar(&l.dir, "dir", "", "directory of the store; restart wants it absent or empty")
	flags.Uint64Var(&l.documents, "documents", 1000, "number of documents")
	flags.IntVar(&l.keyBytes, "key-size", keyBytes, "bytes of a key; only 16")
	flags.IntVar(&l.valueSize, "value-size", 1024, "bytes of a value")
	flags.BoolVar(&verify, "verify", false, "open: compare some of the documents afterwards")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case engine != "pebble":
		return fmt.Errorf("engine %q: want pebble", engine)
	case l.dir == "":
		return fmt.Errorf("--dir is missing")
	case l.documents == 0:
		return fmt.Errorf("documents 0: want at least 1")
	case l.keyBytes != keyBytes:
		return fmt.Errorf("key size %d: want %d", l.keyBytes, keyBytes)
	case l.valueSize < 0 || l.valueSize > 1<<20:
		return fmt.Errorf("value size %d: want 0 to %d", l.valueSize, 1<<20)
	}
	switch command {
	case "restart":
		if left, _ := filepath.Glob(filepath.Join(l.dir, "*")); len(left) > 0 {
			return fmt.Errorf("%s is not empty", l.dir)
		}
		return loadPebble(l)
	case "open":
		took, err := openPebble(l, verify)
		if err == nil {
			fmt.Printf("%.3f\n", took.Seconds())
		}
		return err
	}
	return fmt.Errorf("command %q: want restart or open", command)
}
