//go:build !race

package manifest

const raceBuild = false
