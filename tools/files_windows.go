package tools

import (
	"io/fs"
	"os"
)

const openNonblock = 0

// keepOwner does nothing: a new file gets its owner and rights from its folder.
func keepOwner(*os.File, fs.FileInfo) error { return nil }
