package tidy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "fluxkv"
)

// source is one parsed Go file.
type source struct {
	name string // relative to the root, with slashes
	dir  string // its package's directory, relative to the root
	test bool
	fset *token.FileSet
	ast  *ast.File
}

// imports returns import paths, and for each the line it stands on.
func (s source) imports() map[string]int {
	m := map[string]int{}
	for _, spec := range s.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			m[p] = s.fset.Position(spec.Pos()).Line
		}
	}
	return m
}

// walk calls fn for every file of the tree that belongs to the project.
func walk(t *testing.T, fn func(name string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			switch {
			case rel == "." || rel == ".ci":
				return nil
			case strings.HasPrefix(d.Name(), "."), rel == "bin", rel == "data":
				return fs.SkipDir
			}
			return nil
		}
		fn(rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// peers is a module of its own, which compares other engines with fluxkv. It
// may use them, and nothing here may import it.
const peers = "bench/peers"

// sources parses all Go files of the main module outside testdata. Build tags
// are ignored: every variant must keep the rules.
func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	walk(t, func(name string) {
		if path.Ext(name) != ".go" || strings.Contains(name, "testdata/") || path.Dir(name) == peers {
			return
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(root, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, source{name: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), fset: fset, ast: f})
	})
	if len(out) < 10 {
		t.Fatalf("only %d Go files found: is the root %s?", len(out), root)
	}
	return out
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
