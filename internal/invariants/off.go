//go:build !invariants && !race

package invariants

// Enabled is true in builds with the tag invariants and in race builds.
const Enabled = false
