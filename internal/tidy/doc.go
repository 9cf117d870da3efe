// Package tidy holds tests about the source tree itself: which package may
// import which, who may touch data files, which names pages may mention. It
// has no code of its own.
package tidy
