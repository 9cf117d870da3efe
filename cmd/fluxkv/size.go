package main

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// size is a number of bytes as flags take it: KiB MiB GiB are powers of 1024,
// kB MB GB of 1000, a bare number is bytes.
type size int64

var sizeUnits = []struct {
	name  string
	bytes int64
}{
	{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3},
}

var errSize = errors.New("want a whole number of bytes, or one with KiB, MiB, GiB, kB, MB or GB behind it")

// Set is part of pflag.Value.
func (s *size) Set(text string) error {
	number, unit := text, int64(1)
	for _, u := range sizeUnits {
		if n, ok := strings.CutSuffix(text, u.name); ok {
			number, unit = n, u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || int64(n) > math.MaxInt64/unit {
		return errSize
	}
	*s = size(int64(n) * unit)
	return nil
}

// String is part of pflag.Value: the shortest form that is exact.
func (s *size) String() string {
	for _, u := range sizeUnits[:3] {
		if n := int64(*s); n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(*s), 10)
}

// Type is part of pflag.Value.
func (s *size) Type() string { return "size" }
