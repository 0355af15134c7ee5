package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// folders are picket's own: settings in Config, everything else in Data.
type folders struct {
	Config, Data string
	Home         string // of the user, "" if unknown
}

func (f folders) configFile() string { return filepath.Join(f.Config, "config.json") }

// findFolders names the folders without touching them: PICKET_HOME/config and
// PICKET_HOME/data if that is set, else those of the system (XDG Base Directory
// Specification; Application Support on macOS; AppData on Windows).
func findFolders(getenv func(string) string) (folders, error) {
	var f folders
	f.Home, _ = os.UserHomeDir()
	if dir := getenv("PICKET_HOME"); dir != "" {
		dir, err := filepath.Abs(dir)
		f.Config, f.Data = filepath.Join(dir, "config"), filepath.Join(dir, "data")
		return f, err
	}
	place := func(variable, underHome string, rest ...string) (string, error) {
		dir := getenv(variable)
		if variable == "" || dir == "" {
			if f.Home == "" {
				return "", errors.New("your home folder is unknown: set HOME or PICKET_HOME")
			}
			dir = filepath.Join(f.Home, underHome)
		}
		if !filepath.IsAbs(dir) {
			return "", fmt.Errorf("%s must be an absolute path, not %q", variable, dir)
		}
		return filepath.Join(dir, filepath.Join(rest...)), nil
	}
	var err, err2 error
	switch runtime.GOOS {
	case "windows":
		f.Config, err = place("APPDATA", `AppData\Roaming`, "picket")
		f.Data, err2 = place("LOCALAPPDATA", `AppData\Local`, "picket")
	case "darwin":
		f.Config, err = place("", "Library/Application Support", "picket", "config")
		f.Data, err2 = place("", "Library/Application Support", "picket", "data")
	default:
		f.Config, err = place("XDG_CONFIG_HOME", ".config", "picket")
		f.Data, err2 = place("XDG_DATA_HOME", ".local/share", "picket")
	}
	return f, errors.Join(err, err2)
}

// check reports what lies in the folders with a wrong owner or mode, in an error
// that holds the commands to mend it. What does not exist is right.
func (f folders) check() error {
	var faults []error
	for _, dir := range []string{f.Config, f.Data} {
		info, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%q is not a folder", dir)
		}
		if err != nil {
			return err
		}
		list, err := os.ReadDir(dir)
		faults = append(faults, checkInfo(dir, info), err)
		for _, e := range list {
			path := filepath.Join(dir, e.Name())
			if info, err := os.Stat(path); err == nil { // else gone, or a link to nowhere
				faults = append(faults, checkInfo(path, info))
			}
		}
	}
	return errors.Join(faults...)
}

// create makes the folders that do not exist, for their owner only.
func (f folders) create() error {
	for _, dir := range []string{f.Config, f.Data} {
		if err := ensureDir(dir); err != nil {
			return err
		}
	}
	return f.check()
}

// initConfig writes the commented settings file with every default.
func (f folders) initConfig() (path string, err error) {
	path = f.configFile()
	file, err := createFile(path)
	if errors.Is(err, fs.ErrExist) {
		return path, fmt.Errorf("%q exists already and is left as it is", path)
	}
	if err != nil {
		return path, err
	}
	_, err = file.Write(defaultSettings)
	return path, errors.Join(err, file.Close())
}

// readSmallFile reads a regular file of at most 1 MiB.
func readSmallFile(path string) ([]byte, error) {
	info, err := os.Stat(path) // before the open, which would wait for a pipe
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > 1<<20 {
		return nil, fmt.Errorf("%q is not a regular file of at most 1 MiB", path)
	}
	return os.ReadFile(path)
}

// resolveWorkspace returns the folder to work in, links resolved. given is what
// a flag, the environment or the settings say, "" if none does; cwd is the
// current folder, "" if unknown. masked tells that a box hides picket's own
// folders wherever they lie. note is a line for the owner, "" if there is none.
func (f folders) resolveWorkspace(given, cwd string, masked bool) (dir, note string, err error) {
	if given == "" && cwd != "" {
		if dir, err = filepath.EvalSymlinks(cwd); err == nil && f.tooWide(dir) == "" {
			given = dir
		}
	}
	if given == "" {
		if f.Home == "" {
			return "", "", errors.New("there is no folder to work in: give one with --workspace")
		}
		given = filepath.Join(f.Home, "picket")
		if err = os.Mkdir(given, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", "", err
		}
		note = fmt.Sprintf("working in %q, since the current folder is too wide a workspace", given)
	}
	if dir, err = f.workspace(given, cwd, masked); err != nil {
		return "", "", fmt.Errorf("the workspace %v", err)
	}
	return dir, note, nil
}

func (f folders) workspace(given, cwd string, masked bool) (string, error) {
	dir := f.expand(given)
	if !filepath.IsAbs(dir) {
		if cwd == "" {
			return "", fmt.Errorf("%q must be an absolute path", given)
		}
		dir = filepath.Join(cwd, dir)
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("%q cannot be used: %v", given, err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", fmt.Errorf("%q is not a folder", given)
	}
	if why := f.tooWide(dir); why != "" {
		return "", fmt.Errorf("%q is too wide: it is %s", given, why)
	}
	for _, own := range []string{f.Config, f.Data} {
		own = resolveExisting(own)
		if within(dir, own) {
			return "", fmt.Errorf("%q lies in picket's own folder %q", dir, own)
		}
		if within(own, dir) && !masked {
			return "", fmt.Errorf("%q holds picket's own folder %q, and there is no sandbox that hides it", dir, own)
		}
	}
	return dir, nil
}

// expand replaces a ~ in front by the home folder.
func (f folders) expand(path string) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/') && f.Home != "" {
		return f.Home + rest
	}
	return path
}

// systemFolders are shared by all of a system or hold many people's files. What
// lies in the trees may not be a workspace either.
var (
	systemFolders = []string{"/bin", "/home", "/lib", "/lib32", "/lib64", "/lost+found", "/media", "/mnt", "/opt",
		"/root", "/run", "/sbin", "/srv", "/tmp", "/usr", "/usr/lib", "/usr/local", "/usr/share", "/usr/src", "/var", "/var/lib", "/var/tmp",
		"/Applications", "/Library", "/System", "/Users", "/Volumes", "/private", "/private/tmp", "/private/var",
		`C:\Program Files`, `C:\Program Files (x86)`, `C:\ProgramData`, `C:\Users`}
	systemTrees = []string{"/boot", "/dev", "/etc", "/proc", "/sys", "/usr/bin", "/usr/sbin", "/private/etc", `C:\Windows`}
)

// tooWide says what makes a resolved folder too wide a workspace, "" if nothing
// does.
func (f folders) tooWide(dir string) string {
	home := f.Home
	if r, err := filepath.EvalSymlinks(home); err == nil {
		home = r
	}
	is := func(other string) bool { return samePath(dir, other) }
	switch info, err := os.Stat(dir); {
	case filepath.Dir(dir) == dir:
		return "the root of the file system"
	case home != "" && is(home):
		return "your home folder"
	case home != "" && within(home, dir):
		return "a folder above your home"
	case slices.ContainsFunc(systemFolders, is):
		return "a system folder"
	case slices.ContainsFunc(systemTrees, func(t string) bool { return within(dir, t) }):
		return "in a system folder"
	case err == nil && info.Mode()&fs.ModeSticky != 0 && info.Mode().Perm()&0o002 != 0:
		return "a folder that everybody can write to"
	}
	return ""
}
