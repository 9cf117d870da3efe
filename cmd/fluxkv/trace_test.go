package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"fluxkv/mcbp"
)

// A systemCall of a trace spans the lines from its start to its return.
type systemCall struct {
	name       string
	text       string // arguments as strace prints them
	start, end int    // line numbers
	result     int
}

var (
	traceStart  = regexp.MustCompile(`^(\d+) +(\w+)\((.*)$`)
	traceResume = regexp.MustCompile(`^(\d+) +<\.\.\. (\w+) resumed>(.*)$`)
	traceResult = regexp.MustCompile(`= (-?\d+)[^=]*$`)
)

// readTrace parses the output of strace -f. strace stops a thread at the start
// and at the return of a call, so the order of its lines is the order in which
// those moments happened.
func readTrace(lines []string) []*systemCall {
	var calls []*systemCall
	open := make(map[string]*systemCall) // by thread
	for n, line := range lines {
		var c *systemCall
		if m := traceStart.FindStringSubmatch(line); m != nil {
			c = &systemCall{name: m[2], text: m[3], start: n, end: len(lines), result: -1}
			calls = append(calls, c)
			if strings.Contains(line, "<unfinished ...>") {
				open[m[1]] = c
				continue
			}
		} else if m := traceResume.FindStringSubmatch(line); m != nil {
			c = open[m[1]]
			delete(open, m[1])
			if c == nil {
				continue // it began before the trace did
			}
			c.text += m[3]
		} else {
			continue
		}
		c.end = n
		if m := traceResult.FindStringSubmatch(line); m != nil {
			c.result, _ = strconv.Atoi(m[1])
		}
	}
	return calls
}

// early returns the answers that left before their write was durable: answer i
// is the i-th 24 bytes sent, and its write is a synced write to a log segment
// that holds tokens[i] and returned before the answer's system call began.
func early(calls []*systemCall, tokens []string) (left []string, answers int) {
	durable := make([]int, len(tokens)) // line at which token i was durable
	for i, token := range tokens {
		durable[i] = 1 << 30
		for _, c := range calls {
			if c.name == "pwritev2" && strings.Contains(c.text, ".seg>") && strings.Contains(c.text, "RWF_DSYNC") &&
				c.result > 0 && strings.Contains(c.text, token) {
				durable[i] = min(durable[i], c.end)
			}
		}
	}
	sent := 0
	for _, c := range calls {
		socket := strings.Contains(c.text, "<socket:") || strings.Contains(c.text, "<TCP")
		switch c.name {
		case "write", "writev", "sendto", "sendmsg":
		default:
			socket = false
		}
		if !socket || c.result <= 0 {
			continue
		}
		sent += c.result
		// A part of an answer counts: it tells the client as much.
		for last := (sent + mcbp.HeaderBytes - 1) / mcbp.HeaderBytes; answers < min(last, len(tokens)); answers++ {
			if durable[answers] > c.start {
				left = append(left, tokens[answers])
			}
		}
	}
	return left, answers
}

func TestEarlyAnswersAreSeenInATrace(t *testing.T) {
	trace := func(lines string) []*systemCall { return readTrace(strings.Split(lines, "\n")) }
	const write = `7 pwritev2(6</d/log/000001.seg>, [{iov_base="..token-a..", iov_len=4096}], 1, 4096, RWF_DSYNC) = 4096`
	const answer = `7 write(9<socket:[1]>, "\201\1", 24) = 24`
	for _, c := range []struct {
		name  string
		lines string
		early int
	}{
		{"write, answer", write + "\n" + answer, 0},
		{"answer, write", answer + "\n" + write, 1},
		{"answer while the write runs", strings.Replace(write, ") = 4096", " <unfinished ...>", 1) + "\n8" + answer[1:] + "\n7 <... pwritev2 resumed>) = 4096", 1},
		{"answer after the resumed write", strings.Replace(write, ") = 4096", " <unfinished ...>", 1) + "\n7 <... pwritev2 resumed>) = 4096\n8" + answer[1:], 0},
		{"write without a sync", strings.Replace(write, "RWF_DSYNC", "0", 1) + "\n" + answer, 1},
		{"write that failed", strings.Replace(write, "= 4096", "= -1 EIO (Input/output error)", 1) + "\n" + answer, 1},
		{"write of something else", strings.Replace(write, "token-a", "token-b", 1) + "\n" + answer, 1},
		{"write to another file", strings.Replace(write, ".seg", ".tmp", 1) + "\n" + answer, 1},
	} {
		left, answers := early(trace(c.lines), []string{"token-a"})
		if len(left) != c.early || answers != 1 {
			t.Errorf("%s: %d early of %d answers, want %d of 1", c.name, len(left), answers, c.early)
		}
	}
}

// TestNoDurableAnswerLeavesEarly watches the system calls of the server: every
// answer to a SET leaves after the synced write that holds it returned. The
// same check must catch a server that is told not to wait.
func TestNoDurableAnswerLeavesEarly(t *testing.T) {
	strace := requireTool(t, "strace")
	binary := buildServer(t)
	for _, c := range []struct {
		name    string
		durable bool
	}{
		{"durable", true},
		{"not durable, which the check must see", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			out := filepath.Join(dir, "trace")
			// -D keeps the server our child, so that signals and exit status
			// are its own.
			p := launch(t, strace, "-D", "-f", "-y", "-s", "1024", "-e", "signal=none", "-o", out,
				"-e", "trace=write,writev,sendto,sendmsg,pwrite64,pwritev,pwritev2",
				binary, "--port", "0", "--data-dir", filepath.Join(dir, "data"), fmt.Sprintf("--durable=%v", c.durable))
			p.waitReady()
			cl := p.connect()
			var tokens []string
			ask := func(n int) {
				t.Helper()
				for range n {
					token := fmt.Sprintf("token-%06d", len(tokens))
					tokens = append(tokens, token)
					cl.put(&mcbp.Request{Opcode: mcbp.OpSet, Extras: make([]byte, 8), Key: []byte("key"), Value: []byte(token)})
				}
				if err := cl.send(); err != nil {
					t.Fatalf("%v\n%s", err, p.text())
				}
				for range n {
					if a, err := cl.receive(); err != nil || a.Status != mcbp.StatusSuccess {
						t.Fatalf("set: %v, %v\n%s", a.Status, err, p.text())
					}
				}
			}
			for range 40 {
				ask(1)
			}
			for range 10 {
				ask(8)
			}
			p.stop()
			var calls []*systemCall
			waitUntil(t, "the trace is complete", func() bool {
				calls = readTrace(traceLines(t, out))
				_, answers := early(calls, tokens)
				return answers == len(tokens)
			})
			left, _ := early(calls, tokens)
			if c.durable && len(left) > 0 {
				t.Errorf("%d of %d answers left before their write was durable, first %s", len(left), len(tokens), left[0])
			}
			if !c.durable && len(left) == 0 {
				t.Errorf("no answer of %d left early from a server that does not wait: the check sees nothing", len(tokens))
			}
		})
	}
}

func traceLines(t *testing.T, path string) (lines []string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Buffer(nil, 1<<20); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines
}
