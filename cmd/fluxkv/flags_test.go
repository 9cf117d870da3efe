package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

var rewriteFlags = flag.Bool("rewrite-flags", false, "write the table of docs/flags.md")

const (
	flagsPage  = "../../docs/flags.md"
	tableStart = "<!-- table: go test ./cmd/fluxkv -run TestFlagsPage -rewrite-flags -->\n"
	tableEnd   = "<!-- end of table -->\n"
)

// flagsTable is the table of docs/flags.md, as the flags say it.
func flagsTable() string {
	var c config
	var b strings.Builder
	b.WriteString("| flag | default | unit | effect |\n|---|---|---|---|\n")
	flagSet(&c).VisitAll(func(f *pflag.Flag) {
		def := f.DefValue
		if def == "" {
			def = "none"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s |\n", f.Name, def, f.Annotations[unitOf][0], f.Usage)
	})
	return b.String()
}

// TestFlagsPage holds docs/flags.md to the flags.
func TestFlagsPage(t *testing.T) {
	page, err := os.ReadFile(flagsPage)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(page), tableStart)
	table, tail, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no table between its marks", flagsPage)
	}
	if *rewriteFlags {
		if err := os.WriteFile(flagsPage, []byte(head+tableStart+flagsTable()+tableEnd+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want := flagsTable(); table != want {
		t.Errorf("%s differs from the flags (run with -rewrite-flags)\ngot\n%s\nwant\n%s", flagsPage, table, want)
	}
}

// TestHelpHasEveryFlag checks that --help says default and effect.
func TestHelpHasEveryFlag(t *testing.T) {
	var out, errs bytes.Buffer
	if status := command(context.Background(), []string{"--help"}, &out, &errs); status != exitDrained || errs.Len() > 0 {
		t.Fatalf("status %d, %s", status, &errs)
	}
	var c config
	flagSet(&c).VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(out.String(), "--"+f.Name) || f.Usage == "" || f.Annotations[unitOf] == nil {
			t.Errorf("--%s", f.Name)
		}
	})
}

// TestBadFlags checks that every mistake is named, with status 2.
func TestBadFlags(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"--nonsense"}, []string{"--nonsense"}},
		{[]string{"stray"}, []string{`"stray"`}},
		{[]string{"--port", "65536"}, []string{"--port", "65536"}},
		{[]string{"--port", "x"}, []string{"--port", `"x"`}},
		{[]string{"--mem-quota", "1TB"}, []string{"--mem-quota", `"1TB"`, "KiB"}},
		{[]string{"--mem-quota", "-1"}, []string{"--mem-quota"}},
		{[]string{"--mem-quota", "1MiB"}, []string{"--mem-quota", "16 MiB"}},
		{[]string{"--write-cache", "2GiB"}, []string{"--write-cache", "--mem-quota"}},
		{[]string{"--cache-size", "1000KiB"}, []string{"--cache-size", "1 MiB"}},
		{[]string{"--cache-size", "1GiB"}, []string{"--cache-size", "--write-cache", "--mem-quota"}},
		{[]string{"--cache-policy", "lru"}, []string{"--cache-policy", "s3fifo"}},
		{[]string{"--overload", "drop"}, []string{"--overload", `"drop"`, "stall or reject"}},
		{[]string{"--async-window", "10"}, []string{"--async-window"}},
		{[]string{"--async-window", "0"}, []string{"--async-window"}},
		{[]string{"--async-window", "2h"}, []string{"--async-window"}},
		{[]string{"--inline-limit", "1MiB"}, []string{"--inline-limit"}},
		{[]string{"--segment-size", "1MiB"}, []string{"--segment-size"}},
		{[]string{"--log-align", "1000"}, []string{"--log-align", "power of two"}},
		{[]string{"--log-inflight", "9"}, []string{"--log-inflight"}},
		{[]string{"--flushers", "0"}, []string{"--flushers", "at least 1"}},
		{[]string{"--flushers", "17"}, []string{"--flushers"}},
		{[]string{"--sstable-size", "0"}, []string{"--sstable-size", "at least 1"}},
		{[]string{"--sstable-size", "3GiB"}, []string{"--sstable-size", "2 GiB"}},
		{[]string{"--sstable-write-buffer", "0"}, []string{"--sstable-write-buffer"}},
		{[]string{"--sstable-write-buffer", "65MiB"}, []string{"--sstable-write-buffer", "64 MiB"}},
		{[]string{"--key-block-size", "0"}, []string{"--key-block-size"}},
		{[]string{"--key-block-size", "2MiB"}, []string{"--key-block-size"}},
		{[]string{"--bloom-bits", "-1"}, []string{"--bloom-bits", "no filters"}},
		{[]string{"--bloom-bits", "59"}, []string{"--bloom-bits", "want 0 to 58"}},
		{[]string{"--compression", "lz4"}, []string{"--compression", `"lz4"`, "none or snappy"}},
		{[]string{"--index-compression", "zstd"}, []string{"--index-compression", `"zstd"`, "none or snappy"}},
		{[]string{"--compactors", "0"}, []string{"--compactors", "at least 1"}},
		{[]string{"--compactors", "17"}, []string{"--compactors", "1 to 16"}},
		{[]string{"--space-amp", "0"}, []string{"--space-amp", "at least 1"}},
		{[]string{"--space-amp", "1.05"}, []string{"--space-amp", "1.1 to 4"}},
		{[]string{"--space-amp", "NaN"}, []string{"--space-amp", "1.1 to 4"}},
		{[]string{"--space-amp", "half"}, []string{"--space-amp", `"half"`}},
		{[]string{"--key-shape", "round"}, []string{"--key-shape", `"round"`, "lazy or leveled"}},
		{[]string{"--key-merge-share", "0.001"}, []string{"--key-merge-share", "0.01 to 2"}},
		{[]string{"--key-merge-share", "-1"}, []string{"--key-merge-share"}},
		{[]string{"--key-level-multiplier", "0"}, []string{"--key-level-multiplier", "at least 1"}},
		{[]string{"--key-level-multiplier", "1"}, []string{"--key-level-multiplier", "2 to 100"}},
		{[]string{"--l0-tables", "0"}, []string{"--l0-tables", "at least 1"}},
		{[]string{"--l0-tables", "65"}, []string{"--l0-tables", "1 to 64"}},
		{[]string{"--base-level-size", "0"}, []string{"--base-level-size", "at least 1"}},
		{[]string{"--base-level-size", "1000"}, []string{"--base-level-size", "1 MiB"}},
		{[]string{"--max-item-size", "65MiB"}, []string{"--max-item-size"}},
		{[]string{"--max-conns", "0"}, []string{"--max-conns"}},
		{[]string{"--max-conns", "-1"}, []string{"--max-conns"}},
		{[]string{"--vbuckets", "0"}, []string{"--vbuckets"}},
		{[]string{"--vbuckets", "8", "--kvstores", "9"}, []string{"--kvstores", "--vbuckets"}},
		{[]string{"--data-dir", ""}, []string{"--data-dir"}},
		{[]string{"--durable=perhaps"}, []string{"--durable"}},
		{[]string{"--log-align", "1000", "--log-inflight", "9"}, []string{"--log-align", "--log-inflight"}},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			var out, errs bytes.Buffer
			ctx, cancel := context.WithCancel(context.Background())
			cancel() // a mistake that is not seen must not serve
			if status := command(ctx, tc.args, &out, &errs); status != exitUsage || out.Len() > 0 {
				t.Fatalf("status %d\n%s%s", status, &out, &errs)
			}
			for _, want := range tc.want {
				if !strings.Contains(errs.String(), want) {
					t.Errorf("%q does not name %s", &errs, want)
				}
			}
		})
	}
}

func TestFlagsReachOptions(t *testing.T) {
	var c config
	lo, po, _, ok := parse(&c, strings.Fields(`--vbuckets 64 --kvstores 4 --mem-quota 2GiB --write-cache 1GB --durable=false
		--async-window 5ms --overload reject --inline-limit 0 --segment-size 8MiB --log-align 512 --log-inflight 2
		--direct-io=false --max-item-size 1MiB --max-conns 10 --flushers 2 --sstable-size 16MiB --sstable-write-buffer 2MiB
		--key-block-size 8KiB --bloom-bits 0 --index-compression snappy --compression snappy --compactors 3 --space-amp 1.3 --key-shape leveled
		--key-merge-share 0.2 --key-level-multiplier 8 --l0-tables 6 --base-level-size 32MiB --cache-size 64MiB --cache-policy s3fifo`), os.Stdout, os.Stderr)
	if !ok {
		t.Fatal("refused")
	}
	got := fmt.Sprintln(lo.VBuckets, lo.KVStores, lo.MemQuota, lo.WriteCache, lo.NonDurable, lo.AsyncWindow, lo.Reject, lo.InlineLimit,
		lo.SegmentBytes, lo.LogAlign, lo.LogInflight, lo.BufferedIO, lo.MaxItemBytes, po.MaxItemBytes, po.MaxConns,
		lo.Flushers, lo.TableBytes, lo.TableWriteBuffer, lo.BlockBytes, lo.BloomBits, lo.CompressIndex, lo.CompressDocuments,
		lo.Compactors, lo.SpaceAmp, lo.Leveled, lo.MergeShare, lo.LevelMultiplier, lo.L0Tables, lo.BaseLevelBytes, lo.DocumentCacheBytes)
	want := fmt.Sprintln(64, 4, 2<<30, 1000000000, true, "5ms", true, -1, 8<<20, 512, 2, true, 1<<20, 1<<20, 10,
		2, 16<<20, 2<<20, 8<<10, -1, true, true,
		3, 1.3, true, 0.2, 8, 6, 32<<20, 64<<20)
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	lo, _, _, ok = parse(&c, nil, os.Stdout, os.Stderr)
	if lo.DocumentCacheBytes != 0 {
		t.Errorf("without flags there is a document cache of %d bytes", lo.DocumentCacheBytes)
	}
	if !ok || lo.VBuckets != 0 || lo.KVStores != 0 {
		t.Errorf("without flags a store does not keep its own partitions: %+v", lo)
	}
	got = fmt.Sprintln(lo.Flushers, lo.TableBytes, lo.TableWriteBuffer, lo.BlockBytes, lo.BloomBits, lo.CompressIndex, lo.CompressDocuments)
	if want := fmt.Sprintln(1, 32<<20, 1<<20, 4<<10, 10, false, false); got != want {
		t.Errorf("defaults of tables: got %s, want %s", got, want)
	}
	got = fmt.Sprintln(lo.Compactors, lo.SpaceAmp, lo.Leveled, lo.MergeShare, lo.LevelMultiplier, lo.L0Tables, lo.BaseLevelBytes)
	if want := fmt.Sprintln(2, 1.5, false, 0.0, 10, 4, 64<<20); got != want {
		t.Errorf("defaults of merges: got %s, want %s", got, want)
	}
}

func TestSizes(t *testing.T) {
	for _, tc := range []struct {
		text string
		want int64 // -1: an error
		back string
	}{
		{"0", 0, "0"},
		{"1", 1, "1"},
		{"4096", 4096, "4KiB"},
		{"1KiB", 1024, "1KiB"},
		{"1kB", 1000, "1000"},
		{"3MiB", 3 << 20, "3MiB"},
		{"3MB", 3000000, "3000000"},
		{"1536MiB", 1536 << 20, "1536MiB"},
		{"2GiB", 2 << 30, "2GiB"},
		{"2GB", 2000000000, "1953125KiB"},
		{"9223372036854775807", 1<<63 - 1, "9223372036854775807"},
		{"9223372036854775808", -1, ""},
		{"8589934592GiB", -1, ""},
		{"", -1, ""},
		{"KiB", -1, ""},
		{"1.5GiB", -1, ""},
		{"-1", -1, ""},
		{"1 KiB", -1, ""},
		{"1KB", -1, ""},
		{"1kib", -1, ""},
		{"1TB", -1, ""},
	} {
		s := size(-7)
		err := s.Set(tc.text)
		switch {
		case tc.want < 0:
			if err == nil || s != -7 {
				t.Errorf("%q: %d, %v, want an error", tc.text, s, err)
			}
		case err != nil || int64(s) != tc.want || s.String() != tc.back:
			t.Errorf("%q: %d, %q, %v", tc.text, s, s.String(), err)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	var out, errs bytes.Buffer
	if status := command(context.Background(), []string{"--version"}, &out, &errs); status != exitDrained || !strings.HasPrefix(out.String(), "fluxkv ") {
		t.Errorf("%d %q %q", status, &out, &errs)
	}
}

// TestFailureIsStatusOne: what is no usage error fails.
func TestFailureIsStatusOne(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if status := command(context.Background(), []string{"--data-dir", file, "--port", "0"}, &out, &errs); status != exitFailed || !strings.Contains(errs.String(), file) {
		t.Errorf("status %d: %s", status, &errs)
	}
}

// TestReadyLine starts twice in one process: the line says what was found.
func TestReadyLine(t *testing.T) {
	dir := t.TempDir()
	for _, want := range []string{"created", "recovered 0 documents"} {
		ctx, cancel := context.WithCancel(context.Background())
		out := &firstLine{seen: cancel} // stops when the line is there
		var errs bytes.Buffer
		sock := filepath.Join(dir, "socket")
		args := []string{"--port", "0", "--data-dir", filepath.Join(dir, "data"), "--unix-socket", sock, "--vbuckets", "8", "--mem-quota", "64MiB"}
		if status := command(ctx, args, out, &errs); status != exitDrained {
			t.Fatalf("status %d: %s", status, &errs)
		}
		cancel()
		for _, w := range []string{"ready on 127.0.0.1:", sock, "8 vbuckets", "8 kvstores", want} {
			if !strings.Contains(out.text.String(), w) {
				t.Errorf("%q does not say %q", out.text.String(), w)
			}
		}
		if _, err := os.Stat(sock); err == nil {
			t.Error("the socket file is still there")
		}
	}
}

// firstLine calls seen when something was written.
type firstLine struct {
	text bytes.Buffer
	seen func()
}

func (f *firstLine) Write(b []byte) (int, error) {
	f.seen()
	return f.text.Write(b)
}

func TestStopDuringRecovery(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	if status := command(ctx, []string{"--port", "0", "--data-dir", t.TempDir()}, &out, &errs); status != exitDrained || out.Len() > 0 {
		t.Errorf("status %d: %s%s", status, &out, &errs)
	}
}
