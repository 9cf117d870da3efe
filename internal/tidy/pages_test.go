package tidy

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fluxkv/internal/mutant"
)

var (
	linkPattern = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	codePattern = regexp.MustCompile("`([A-Za-z0-9_./-]+)`")
	docsPattern = regexp.MustCompile(`\bdocs/[A-Za-z0-9_-]+\.md\b`)
	fencePrefix = "```"
)

// folders are the top-level names that make a word in a page a file of the
// project.
var folders = []string{
	"cmd", "lsm", "sstable", "memtable", "wal", "compaction", "mcbp", "bench", "docs", "internal", "scripts", "testdata", ".ci",
}

// pages returns the names of the markdown pages people read.
func pages(t *testing.T) []string {
	t.Helper()
	var out []string
	walk(t, func(name string) {
		if path.Ext(name) == ".md" && !strings.Contains(name, "testdata/") {
			out = append(out, name)
		}
	})
	return out
}

func exists(name string) bool {
	_, err := os.Stat(filepath.Join(root, name))
	return err == nil
}

// TestPageLinks: a link that is not an address of the web leads to a file.
func TestPageLinks(t *testing.T) {
	for _, page := range pages(t) {
		for i, line := range strings.Split(readFile(t, page), "\n") {
			for _, m := range linkPattern.FindAllStringSubmatch(line, -1) {
				target, _, _ := strings.Cut(m[1], "#")
				if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
					continue
				}
				if !exists(path.Join(path.Dir(page), target)) {
					t.Errorf("%s:%d: link to %s, which does not exist", page, i+1, m[1])
				}
			}
		}
	}
}

// TestPageFileNames: a file or folder of the project that a page names in
// `code` exists. Go and markdown files may be named without their folder.
func TestPageFileNames(t *testing.T) {
	base := map[string]bool{}
	walk(t, func(name string) { base[path.Base(name)] = true })
	for _, page := range pages(t) {
		fenced := false
		for i, line := range strings.Split(readFile(t, page), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), fencePrefix) {
				fenced = !fenced
				continue
			}
			if fenced {
				continue
			}
			for _, m := range codePattern.FindAllStringSubmatch(line, -1) {
				name := strings.TrimSuffix(strings.TrimPrefix(m[1], "./"), "/...")
				first, _, nested := strings.Cut(name, "/")
				ext := path.Ext(name)
				var ok bool
				switch {
				case nested && slices.Contains(folders, first):
					ok = exists(name)
				case ext == ".go" || ext == ".md":
					ok = exists(name) || exists(path.Join(path.Dir(page), name)) || !nested && base[name]
				default:
					continue
				}
				if !ok {
					t.Errorf("%s:%d: names %s, which does not exist", page, i+1, m[1])
				}
			}
		}
	}
}

// TestCodeNamesPages: a page that a comment, script or other page names exists.
func TestCodeNamesPages(t *testing.T) {
	walk(t, func(name string) {
		ext := path.Ext(name)
		if strings.Contains(name, "testdata/") || ext != ".go" && ext != ".md" && ext != ".sh" && path.Base(name) != "Makefile" {
			return
		}
		for i, line := range strings.Split(readFile(t, name), "\n") {
			for _, page := range docsPattern.FindAllString(line, -1) {
				if !exists(page) {
					t.Errorf("%s:%d: names %s, which does not exist", name, i+1, page)
				}
			}
		}
	})
}

// TestNothingLeftForLater: what is not done is an issue, not a comment.
func TestNothingLeftForLater(t *testing.T) {
	later := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`)
	walk(t, func(name string) {
		switch path.Ext(name) {
		case ".go", ".md", ".sh", ".py":
		default:
			return
		}
		if strings.Contains(name, "testdata/") {
			return
		}
		for i, line := range strings.Split(readFile(t, name), "\n") {
			if m := later.FindString(line); m != "" {
				t.Errorf("%s:%d: %s", name, i+1, m)
			}
		}
	})
}

// TestMakefileTargetsAreExplained: each target has a comment line that names it.
func TestMakefileTargetsAreExplained(t *testing.T) {
	lines := strings.Split(readFile(t, "Makefile"), "\n")
	target := regexp.MustCompile(`^([a-z]+):`)
	count := 0
	for i, line := range lines {
		m := target.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		count++
		if i == 0 || !strings.HasPrefix(lines[i-1], "# "+m[1]+": ") {
			t.Errorf("Makefile:%d: no comment line \"# %s: ...\" above the target", i+1, m[1])
		}
	}
	if count < 7 {
		t.Errorf("only %d targets found", count)
	}
}

// TestPageTests: a test that a page names is there, and a defect in the table of
// rules is planted.
func TestPageTests(t *testing.T) {
	tests := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	walk(t, func(name string) {
		if strings.HasSuffix(name, "_test.go") {
			for _, m := range declared.FindAllStringSubmatch(readFile(t, name), -1) {
				tests[m[1]] = true
			}
		}
	})
	if len(tests) < 100 {
		t.Fatalf("only %d tests found", len(tests))
	}
	named := regexp.MustCompile("`(Test[A-Z0-9]\\w*)`")
	for _, page := range pages(t) {
		for i, line := range strings.Split(readFile(t, page), "\n") {
			for _, m := range named.FindAllStringSubmatch(line, -1) {
				if !tests[m[1]] {
					t.Errorf("%s:%d: no test is called %s", page, i+1, m[1])
				}
			}
		}
	}
	defect := regexp.MustCompile("`([A-Z][A-Za-z]+)`")
	for _, m := range defect.FindAllStringSubmatch(readFile(t, "docs/rules.md"), -1) {
		if !strings.HasPrefix(m[1], "Test") && !slices.Contains(mutant.Names, m[1]) {
			t.Errorf("docs/rules.md: no defect is called %s", m[1])
		}
	}
}
