package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// memTableBytes holds everything that is loaded, so that nothing is flushed
// and all of it must come from the log.
const memTableBytes = 1 << 30

// silent keeps Pebble's account of each log it replays out of the output.
type silent struct{}

func (silent) Infof(string, ...any)           {}
func (silent) Errorf(format string, a ...any) { fmt.Fprintf(os.Stderr, format+"\n", a...) }
func (silent) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

// options are the same for loading and opening.
func options() *pebble.Options {
	return &pebble.Options{
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       memTableBytes,
		Logger:             silent{},
	}
}

// loadPebble writes the documents one by one, as independent clients would,
// and syncs the log with the last one. The store stays open. It fails if any
// document is in a table and not only in the log.
func loadPebble(l load) error {
	o := options()
	o.ErrorIfExists = true
	db, err := pebble.Open(l.dir, o)
	if err != nil {
		return err
	}
	key, value := make([]byte, l.keyBytes), make([]byte, l.valueSize)
	for i := range l.documents {
		putKey(key, i)
		putValue(value, i)
		if err := db.Set(key, value, pebble.NoSync); err != nil {
			return err
		}
	}
	if err := db.LogData(nil, pebble.Sync); err != nil {
		return err
	}
	if n := db.Metrics().Flush.Count; n > 0 {
		return fmt.Errorf("%d flushes while loading: fewer documents fit the memtable of %d bytes", n, memTableBytes)
	}
	return nil
}

// openPebble times opening, and then with verify compares documents.
func openPebble(l load, verify bool) (time.Duration, error) {
	tables, err := filepath.Glob(filepath.Join(l.dir, "*.sst"))
	if err != nil {
		return 0, err
	}
	if len(tables) > 0 {
		return 0, fmt.Errorf("%s has tables: it was opened before, use a fresh copy", l.dir)
	}
	o := options()
	o.ErrorIfNotExists = true
	began := time.Now()
	db, err := pebble.Open(l.dir, o)
	took := time.Since(began)
	if err != nil || !verify {
		return took, err
	}
	w := writing{load: l}
	return took, w.check(&pebbleStore{db})
}
