//go:build !race

package vfs_test

const raceBuild = false
