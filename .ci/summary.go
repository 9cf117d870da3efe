//go:build ignore

// Command summary reads the output of `go test -json`, prints the closing line
// of each package and the output of each failed test, and ends with
// "N passed, N failed". It exits 1 when a test or package failed or none ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// event is one line of `go test -json` (see go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Output     string
}

func main() {
	var passed, failed, skipped int
	output := map[string]*strings.Builder{} // by package and test, until its verdict
	failedIn := map[string]int{}            // failed tests by package
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
			fmt.Print(line) // of make, or of an installation
		} else {
			id := e.Package + " " + e.Test
			switch {
			case e.Action == "build-output":
				fmt.Print(e.Output)
			case e.Action == "output" && e.Test == "" && closing(e.Output):
				fmt.Print(e.Output)
			case e.Action == "output":
				if output[id] == nil {
					output[id] = &strings.Builder{}
				}
				output[id].WriteString(e.Output)
			case e.Test != "" && e.Action == "pass":
				passed++
				delete(output, id)
			case e.Test != "" && e.Action == "skip":
				skipped++
				delete(output, id)
			case e.Test != "" && e.Action == "fail":
				failed++
				failedIn[e.Package]++
				show(output[id])
				delete(output, id)
			case e.Action == "fail":
				// A package that fails without a failed test did not build,
				// panicked outside a test, or ran out of time.
				if failedIn[e.Package] == 0 {
					failed++
				}
				for key, b := range output {
					if strings.HasPrefix(key, e.Package+" ") {
						show(b)
						delete(output, key)
					}
				}
			}
		}
		if err != nil {
			if err != io.EOF {
				fmt.Println("read test output:", err)
				failed++
			}
			break
		}
	}
	fmt.Printf("%d passed, %d failed", passed, failed)
	if skipped > 0 {
		fmt.Printf(", %d skipped", skipped)
	}
	fmt.Println()
	if failed > 0 || passed == 0 {
		os.Exit(1)
	}
}

// closing reports whether line is the verdict of a package.
func closing(line string) bool {
	for _, start := range []string{"ok ", "FAIL\t", "?   "} {
		if strings.HasPrefix(line, start) {
			return true
		}
	}
	return strings.Contains(line, "[no test files]")
}

func show(b *strings.Builder) {
	if b != nil {
		fmt.Print(b.String())
	}
}
