package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   string
		status int
		want   string // in stdout or stderr
	}{
		{"no command", "", exitUsage, "usage: fluxbench run"},
		{"an unknown command", "walk", exitUsage, `unknown command "walk"`},
		{"help", "--help", exitClean, "usage: fluxbench run"},
		{"help of run", "run --help", exitClean, "--pipeline"},
		{"an unknown flag", "run --fast", exitUsage, "unknown flag: --fast"},
		{"an argument too many", "run get", exitUsage, `unexpected argument "get"`},
		{"a bad value", "run --conns 0", exitUsage, "--conns 0"},
		{"a bad workload", "run --workload scan", exitUsage, `workload "scan"`},
		{"a negative size", "run --value-size -2", exitUsage, "--value-size -2"},
		{"nobody listens", "run --addr unix:/nonexistent/socket", exitFailed, "no such file"},
		{"no server to overwrite", "overwrite", exitUsage, "process id"},
		{"nothing to overwrite", "overwrite --stats x --dir x --server-pid 1 --value-size 0", exitUsage, "--value-size"},
		{"an odd number of windows", "overwrite --stats x --dir x --server-pid 1 --windows 3", exitUsage, "even number"},
		{"no server to time", "latency", exitUsage, "process id"},
		{"a share that is none", "latency --stats x --dir x --server-pid 1 --share 0", exitUsage, "--share"},
		{"no directory to time", "latency --stats http://127.0.0.1:1/stats --dir /nonexistent --server-pid 1", exitFailed, "no such file"},
		{"a rate without a time", "run --rate 10 --operations 5", exitUsage, "want a time to run"},
		{"a burst that does not fit", "run --rate 10 --burst 2", exitUsage, "burst 2"},
		{"no directory to overwrite", "overwrite --stats http://127.0.0.1:1/stats --dir /nonexistent --server-pid 1", exitFailed, "no such file"},
		{"no server to read", "read", exitUsage, "process id"},
		{"a workload that writes", "read --stats x --dir x --server-pid 1 --workload set", exitUsage, "want only reads"},
		{"a share above 1", "read --stats x --dir x --server-pid 1 --leaf-hits-max 2", exitUsage, "shares up to 1"},
		{"the head of its table", "read --head", exitClean, "| device reads/GET |"},
		{"no directory to read", "read --stats http://127.0.0.1:1/stats --dir /nonexistent --server-pid 1", exitFailed, "no such file"},
		{"no server to wait for", "settle", exitUsage, "--stats"},
		{"a wait that is too short", "settle --stats x --timeout 1s", exitUsage, "--timeout"},
		{"nobody answers", "settle --stats http://127.0.0.1:1/stats", exitFailed, "refused"},
		{"no directory to drop", "drop", exitUsage, "--dir"},
		{"a directory that is gone", "drop --dir /nonexistent", exitFailed, "no such file"},
		{"no directory", "device", exitUsage, "want --dir"},
		{"a directory that is not there", "device --dir /nonexistent", exitFailed, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			status := command(context.Background(), strings.Fields(c.args), &out, &out)
			if status != c.status || !strings.Contains(out.String(), c.want) {
				t.Errorf("status %d, want %d; output %q, want %q in it", status, c.status, out.String(), c.want)
			}
		})
	}
}
