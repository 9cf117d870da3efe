package tidy

import (
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mayTouchFiles are the folders whose packages may use the operating system's
// files: the file layer itself, programs, and tools for tests.
var mayTouchFiles = []string{"internal/vfs", "internal/aio", "internal/tidy", "cmd", "bench", ".ci"}

// osAllowed are the names of package os that touch no file.
var osAllowed = []string{
	"ErrNotExist", "ErrExist", "ErrPermission", "ErrInvalid", "ErrClosed", "ErrDeadlineExceeded",
	"PathError", "SyscallError", "NewSyscallError",
	"Getpid", "Getpagesize", "Getenv", "LookupEnv", "Hostname", "Exit",
	"Signal", "Interrupt", "Kill", "Stderr", "Stdout", "Args",
}

// socketAllowed are what the front end may do besides: a unix socket has a name
// in the file system and is no data file.
var socketAllowed = []string{"Chmod", "Lstat", "ModeSocket", "Remove"}

// fileCalls are the names of packages syscall and unix that reach files by
// name, or write, cut or sync them.
var fileCalls = []string{
	"Open", "Openat", "Openat2", "Creat", "Unlink", "Unlinkat", "Rename", "Renameat", "Renameat2", "Link", "Linkat", "Symlink",
	"Mkdir", "Mkdirat", "Rmdir", "Truncate", "Ftruncate", "Fallocate", "Fsync", "Fdatasync", "Sync", "Syncfs", "SyncFileRange",
	"Pread", "Preadv", "Preadv2", "Pwrite", "Pwritev", "Pwritev2", "Flock", "Stat", "Lstat", "Fstat", "Fstatat", "Statfs", "Fstatfs",
}

// TestOnlyVFSTouchesFiles keeps data files behind the file layer: what goes
// past it is invisible to the crash and fault tests.
func TestOnlyVFSTouchesFiles(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || slices.ContainsFunc(mayTouchFiles, func(dir string) bool { return s.dir == dir || strings.HasPrefix(s.dir, dir+"/") }) {
			continue
		}
		names := map[string]string{} // local name -> import path
		for _, spec := range s.ast.Imports {
			p, _ := strconv.Unquote(spec.Path.Value)
			line := s.fset.Position(spec.Pos()).Line
			switch p {
			case "io/ioutil", "path/filepath":
				t.Errorf("%s:%d: imports %s; only the file layer may. Names of files are joined with package path", s.name, line, p)
			case "os", "syscall", "golang.org/x/sys/unix":
				local := path.Base(p)
				if spec.Name != nil {
					local = spec.Name.Name
				}
				if local == "." {
					t.Errorf("%s:%d: dot import of %s", s.name, line, p)
				}
				names[local] = p
			}
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			bad := false
			switch p := names[x.Name]; p {
			case "os":
				bad = !slices.Contains(osAllowed, sel.Sel.Name) &&
					!(s.dir == "mcbp" && slices.Contains(socketAllowed, sel.Sel.Name))
			case "syscall", "golang.org/x/sys/unix":
				bad = slices.Contains(fileCalls, sel.Sel.Name)
			}
			if bad {
				t.Errorf("%s: %s.%s: only internal/vfs touches files", s.fset.Position(sel.Pos()), x.Name, sel.Sel.Name)
			}
			return true
		})
	}
}
