package tools

import (
	"os"
	"os/exec"
	"testing"
)

// need skips a test that cannot run here, or fails it where all must run. what
// says what to install.
func need(t testing.TB, ok bool, what string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("PICKET_TEST_REQUIRE") == "all":
		t.Fatal("needs " + what)
	default:
		t.Skip("needs " + what)
	}
}

// needProgram returns the path of a program.
func needProgram(t testing.TB, name, install string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	need(t, err == nil, name+" (install "+install+")")
	return path
}
