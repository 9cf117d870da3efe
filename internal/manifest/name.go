package manifest

import (
	"fmt"
	"strconv"
	"strings"
)

// Base names of the files this package owns.
const (
	FormatName     = "FORMAT"
	CurrentName    = "CURRENT"
	formatTempName = "FORMAT.tmp"
	// CURRENT.tmp and FORMAT.tmp exist only while their rename is pending.
	currentTempName = "CURRENT.tmp"
	namePrefix      = "MANIFEST-"
	nameDigits      = 6
)

// Name returns the base name of manifest file number n.
func Name(n uint64) string { return fmt.Sprintf("%s%0*d", namePrefix, nameDigits, n) }

// ParseName takes a base name apart; ok is false for any name that Name does
// not produce.
func ParseName(base string) (n uint64, ok bool) {
	digits, found := strings.CutPrefix(base, namePrefix)
	if !found {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	// Only the one spelling: "MANIFEST-7" or "MANIFEST-+00007" is somebody
	// else's file, and what cannot be classified must never be deleted.
	if err != nil || n == 0 || Name(n) != base {
		return 0, false
	}
	return n, true
}

// Obsolete returns those names (base names of the data directory) that belong
// to this package and that st no longer needs: older or abandoned manifests and
// temporary files. Unknown names are never returned. Call it after recovery has
// succeeded, with the state of the first Apply after Open and before any other:
// a rotation may be writing a file that no state names yet.
func Obsolete(names []string, st State) []string {
	var out []string
	for _, name := range names {
		switch n, ok := ParseName(name); {
		case ok && n != st.Manifest && n < st.NextFileNumber:
			out = append(out, name)
		case name == currentTempName || name == formatTempName:
			out = append(out, name)
		}
	}
	return out
}
