package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// eventLog writes one line an event: when, and what. It is safe for concurrent
// use.
type eventLog struct {
	mu sync.Mutex // one line at a time
	w  io.Writer
}

func (l *eventLog) printf(format string, args ...any) {
	line := time.Now().UTC().Format("2006-01-02T15:04:05.000Z ") + fmt.Sprintf(format, args...) + "\n"
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = io.WriteString(l.w, line) // there is no place left to complain to
}
