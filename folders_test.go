package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestFindFolders(t *testing.T) {
	t.Setenv("HOME", "/home/u")
	for _, tt := range []struct {
		name         string
		env          []string
		config, data string
		err          string
	}{
		{"defaults", nil, "/home/u/.config/picket", "/home/u/.local/share/picket", ""},
		{"XDG", []string{"XDG_CONFIG_HOME", "/c", "XDG_DATA_HOME", "/d"}, "/c/picket", "/d/picket", ""},
		{"XDG empty", []string{"XDG_CONFIG_HOME", ""}, "/home/u/.config/picket", "/home/u/.local/share/picket", ""},
		{"XDG relative", []string{"XDG_DATA_HOME", "d"}, "", "", `XDG_DATA_HOME must be an absolute path, not "d"`},
		{"PICKET_HOME", []string{"PICKET_HOME", "/p", "XDG_CONFIG_HOME", "/c"}, "/p/config", "/p/data", ""},
	} {
		if runtime.GOOS != "linux" && tt.name != "PICKET_HOME" {
			continue
		}
		f, err := findFolders(env(tt.env...))
		if tt.err != "" {
			if err == nil || err.Error() != tt.err {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if err != nil || f.Config != tt.config || f.Data != tt.data {
			t.Errorf("%s: %+v %v", tt.name, f, err)
		}
	}
	t.Setenv("HOME", "")
	if _, err := findFolders(env()); err == nil && runtime.GOOS == "linux" {
		t.Error("no error without a home")
	}
}

func TestFoldersArePrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes are not checked on Windows")
	}
	f := testFolders(t, "{}")
	for _, dir := range []string{f.Config, f.Data, filepath.Dir(f.Config)} {
		if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
			t.Errorf("%s was created with mode %v", dir, info.Mode())
		}
	}
	log := filepath.Join(f.Data, "it's a log")
	os.WriteFile(log, nil, 0o600)
	os.Mkdir(filepath.Join(f.Data, "chats"), 0o700)
	if err := f.check(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path string
		mode os.FileMode
		want string
	}{
		{f.Config, 0o755, "chmod 700 '" + f.Config + "'"},
		{f.Data, 0o710, "chmod 700 '" + f.Data + "'"},
		{f.configFile(), 0o644, "chmod 600 '" + f.configFile() + "'"},
		{log, 0o620, `chmod 600 '` + f.Data + `/it'\''s a log'`},
		{filepath.Join(f.Data, "chats"), 0o701, "chmod 700 '" + f.Data + "/chats'"},
	} {
		before, _ := os.Stat(tt.path)
		os.Chmod(tt.path, tt.mode)
		if err := f.check(); err == nil || !strings.HasSuffix(err.Error(), ": "+tt.want) {
			t.Errorf("got  %v\nwant %s", err, tt.want)
		}
		os.Chmod(tt.path, before.Mode())
	}
	if os.Geteuid() == 0 {
		os.Chown(log, 12345, 0)
		if err := f.check(); err == nil || !strings.Contains(err.Error(), "sudo chown 0 '"+f.Data) {
			t.Errorf("another owner: %v", err)
		}
	}
	if err := (folders{Config: filepath.Join(f.Home, "none"), Data: filepath.Join(f.Home, "none2")}).check(); err != nil {
		t.Errorf("folders that do not exist: %v", err)
	}
	if _, err := os.Stat(filepath.Join(f.Home, "none")); err == nil {
		t.Error("check creates folders")
	}
}

func TestReadSmallFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := readSmallFile(dir); err == nil {
		t.Error("a folder was read")
	}
	big := filepath.Join(dir, "big")
	os.WriteFile(big, nil, 0o600)
	os.Truncate(big, 1<<20+1)
	if _, err := readSmallFile(big); err == nil {
		t.Error("a large file was read")
	}
}

func TestWorkspace(t *testing.T) {
	f := testFolders(t, "")
	home, _ := filepath.EvalSymlinks(f.Home)
	project := filepath.Join(home, "src", "project")
	os.MkdirAll(project, 0o755)
	os.Symlink(project, filepath.Join(home, "link"))
	os.Symlink(home, filepath.Join(home, "src", "up"))
	os.WriteFile(filepath.Join(home, "file"), nil, 0o600)
	share := filepath.Join(home, ".local", "share")
	sticky := filepath.Join(home, "sticky")
	os.Mkdir(sticky, 0o700)
	os.Chmod(sticky, 0o777|os.ModeSticky)
	for _, tt := range []struct {
		name, given, cwd string
		masked           bool
		want             string // the folder, or what the error says
	}{
		{"the current folder", "", project, true, project},
		{"by a link", "", filepath.Join(home, "link"), true, project},
		{"home becomes a folder in it", "", home, true, filepath.Join(home, "picket")},
		{"so does home by a link", "", filepath.Join(home, "src", "up"), true, filepath.Join(home, "picket")},
		{"what is above home", "", filepath.Dir(home), true, filepath.Join(home, "picket")},
		{"the root", "", "/", true, filepath.Join(home, "picket")},
		{"a folder of all", "", "/tmp", true, filepath.Join(home, "picket")},
		{"an unknown current folder", "", "", true, filepath.Join(home, "picket")},
		{"one that was removed", "", filepath.Join(home, "gone"), true, filepath.Join(home, "picket")},
		{"given", project, home, true, project},
		{"given from here", "src/project", home, true, project},
		{"given from home", "~/src/project", "/", true, project},
		{"given by a link", filepath.Join(home, "link"), "/", true, project},
		{"given with dots", "../src/./project/../project", filepath.Join(home, "src"), true, project},
		{"home given", home, project, true, "too wide: it is your home folder"},
		{"home given by ~", "~", project, true, "too wide: it is your home folder"},
		{"home given by a link", filepath.Join(home, "src", "up"), project, true, "too wide: it is your home folder"},
		{"home given by dots", "../..", project, true, "too wide: it is your home folder"},
		{"above home given", filepath.Dir(home), project, true, "too wide: it is"},
		{"the root given", "/", project, true, "too wide: it is the root"},
		{"/tmp given", "/tmp", project, true, "too wide: it is a"},
		{"/home given", "/home", project, true, "too wide: it is a"},
		{"/usr given", "/usr", project, true, "too wide: it is a system folder"},
		{"/etc given", "/etc", project, true, "too wide: it is in a system folder"},
		{"a folder in /proc", "/proc/self", project, true, "too wide: it is in a system folder"},
		{"a folder that everybody can write", sticky, project, true, "too wide: it is a folder that everybody can write to"},
		{"a file", filepath.Join(home, "file"), project, true, "is not a folder"},
		{"nothing", filepath.Join(home, "none"), project, true, "cannot be used"},
		{"holds the data, masked", share, project, true, share},
		{"holds the data", share, project, false, "holds picket's own folder"},
		{"holds the settings", filepath.Join(home, ".config"), project, false, "holds picket's own folder"},
		{"the current folder holds the data", "", share, false, "holds picket's own folder"},
		{"in the data", f.Data, project, true, "lies in picket's own folder"},
		{"the current folder is the data", "", f.Data, true, "lies in picket's own folder"},
		{"a name that starts like the data", "", project, false, project},
	} {
		if runtime.GOOS != "linux" && strings.HasPrefix(tt.given, "/") && !strings.HasPrefix(tt.given, home) {
			continue
		}
		dir, note, err := f.resolveWorkspace(tt.given, tt.cwd, tt.masked)
		got := dir
		if err != nil {
			got = err.Error()
		}
		if got != tt.want && (err == nil || !strings.Contains(got, tt.want)) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if err == nil && (note != "") != strings.HasSuffix(dir, "/picket") {
			t.Errorf("%s: note %q", tt.name, note)
		}
	}
	if info, _ := os.Stat(filepath.Join(home, "picket")); info.Mode().Perm() != 0o700 {
		t.Errorf("~/picket has mode %v", info.Mode())
	}

	plain := folders{Config: f.Config, Data: f.Data}
	if dir, _, err := plain.resolveWorkspace("", "/", true); err == nil {
		t.Errorf("without a home: %q", dir)
	}
	os.RemoveAll(filepath.Join(home, "picket"))
	os.Symlink("/etc", filepath.Join(home, "picket"))
	if dir, _, err := f.resolveWorkspace("", home, true); err == nil {
		t.Errorf("~/picket as a link to /etc: %q", dir)
	}
}

// Sibling folders whose names start alike are not within each other.
func TestWithin(t *testing.T) {
	for _, tt := range []struct {
		path, dir string
		want      bool
	}{
		{"/w/app", "/w/app", true}, {"/w/app/x", "/w/app", true}, {"/w/app-evil/x", "/w/app", false}, {"/w", "/w/app", false},
		{"/w/..app", "/w", true}, {"/x", "/", true},
	} {
		if got := within(tt.path, tt.dir); got != tt.want {
			t.Errorf("%q within %q: %v", tt.path, tt.dir, got)
		}
	}
}
