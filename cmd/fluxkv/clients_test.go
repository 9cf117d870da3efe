package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// debianPython sees the modules that Debian packages; a python3 that comes
// earlier in PATH may not.
const debianPython = "/usr/bin/python3"

// shell runs a program in dir and returns what it printed and its exit status.
func shell(t *testing.T, dir, name string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", name, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestPythonBinaryMemcached lets a stock client store, read, delete, compare,
// expire and flush, and find its documents after a SIGKILL.
func TestPythonBinaryMemcached(t *testing.T) {
	if exec.Command(debianPython, "-c", "import bmemcached").Run() != nil {
		missing(t, "python3-binary-memcached")
	}
	binary := buildServer(t)
	dir := filepath.Join(t.TempDir(), "data")
	script, err := filepath.Abs("testdata/bmemcached_session.py")
	if err != nil {
		t.Fatal(err)
	}
	session := func(p *process, part string) {
		t.Helper()
		if out, status := shell(t, ".", debianPython, script, p.addr, part); status != 0 {
			t.Fatalf("%s: exit status %d\n%s\nserver:\n%s", part, status, out, p.text())
		}
	}
	p := start(t, binary, dir)
	session(p, "all")
	session(p, "store")
	p.kill()
	p = start(t, binary, dir)
	session(p, "recover")
	p.stop()
	p = start(t, binary, dir)
	session(p, "recover")
	p.stop()
}

// TestLibmemcachedTools does the same with the tools of libmemcached, in the
// binary protocol.
func TestLibmemcachedTools(t *testing.T) {
	// Debian renamed them: upstream's memcp is memccp there.
	tool := func(names ...string) string { return requireTool(t, names...) }
	cp, cat := tool("memccp", "memcp"), tool("memccat", "memcat")
	rm, stat, flush := tool("memcrm", "memrm"), tool("memcstat", "memstat"), tool("memcflush", "memflush")

	binary := buildServer(t)
	data := filepath.Join(t.TempDir(), "data")
	files := t.TempDir()
	p := start(t, binary, data)
	run := func(wantStatus int, name string, args ...string) string {
		t.Helper()
		out, status := shell(t, files, name, append([]string{"--binary", "--servers=" + p.addr}, args...)...)
		if status != wantStatus {
			t.Fatalf("%s %v: exit status %d, want %d\n%s\nserver:\n%s", filepath.Base(name), args, status, wantStatus, out, p.text())
		}
		return out
	}
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(files, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) []byte {
		t.Helper()
		run(0, cat, "--file=out", name)
		b, err := os.ReadFile(filepath.Join(files, "out"))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}

	small, large := []byte("a small file\n"), bytes.Repeat([]byte("0123456789abcde\n"), 60_000)
	write("small", small)
	write("large", large)
	write("brief", []byte("soon gone"))
	run(0, cp, "--set", "--flag=77", "small", "large")
	run(0, cp, "--set", "--expire=1", "brief")
	if got := read("small"); !bytes.Equal(got, small) {
		t.Errorf("small: %q, want %q", got, small)
	}
	if got := read("large"); !bytes.Equal(got, large) {
		t.Errorf("large: %d bytes that differ from the %d stored", len(got), len(large))
	}
	if out := run(0, cat, "--flags", "small"); !strings.HasPrefix(out, "77\n") {
		t.Errorf("flags of small: %q, want 77", out)
	}
	waitUntil(t, "brief expires", func() bool {
		_, status := shell(t, files, cat, "--binary", "--servers="+p.addr, "brief")
		return status != 0
	})
	run(0, rm, "small")
	run(1, cat, "small")
	run(1, rm, "small")

	p.kill()
	p = start(t, binary, data)
	run(1, cat, "small")
	if got := read("large"); !bytes.Equal(got, large) {
		t.Errorf("large after the kill: %d bytes that differ from the %d stored", len(got), len(large))
	}
	if out := run(0, cat, "--flags", "large"); !strings.HasPrefix(out, "77\n") {
		t.Errorf("flags of large after the kill: %q, want 77", out[:min(len(out), 20)])
	}
	if out := run(0, stat); !strings.Contains(out, "curr_items") || !strings.Contains(out, "version") {
		t.Errorf("statistics: %q", out)
	}
	run(0, flush)
	run(1, cat, "large")
	p.kill()
	p = start(t, binary, data)
	run(1, cat, "large")
	p.stop()
}

// TestMemccapable runs the checks of libmemcached's protocol tester for the
// commands that are served.
func TestMemccapable(t *testing.T) {
	memccapable := requireTool(t, "memccapable")
	p := start(t, buildServer(t), filepath.Join(t.TempDir(), "data"))
	for _, name := range []string{
		"noop", "quit", "quitq", "set", "setq", "flush", "flushq", "delete", "deleteq", "get", "getq", "getk", "getkq", "version", "stat",
	} {
		t.Run(name, func(t *testing.T) {
			out, status := shell(t, ".", memccapable, "-b", "-v", "-h", "127.0.0.1", "-p", p.port, "-T", "binary "+name)
			if status != 0 || !strings.Contains(out, "[pass]") {
				t.Errorf("exit status %d\n%s\nserver:\n%s", status, out, p.text())
			}
		})
	}
	p.stop()
}
