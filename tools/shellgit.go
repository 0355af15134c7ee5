package tools

import "strings"

// Options that several git commands share.
const (
	gitDiff = "puswRbazWt U: M? C? B? D S: G: O: l: # --stat? --numstat --shortstat --dirstat? --summary --name-only --name-status --patch --no-patch --raw --unified: --color? --no-color " +
		"--word-diff? --word-diff-regex: --color-words? --cached --staged --check --no-ext-diff --no-textconv --no-renames --find-renames? --find-copies? --find-copies-harder " +
		"--diff-filter: --relative? --ignore-all-space --ignore-space-change --ignore-blank-lines --ignore-space-at-eol --exit-code --quiet --merge-base --no-index --minimal " +
		"--patience --histogram --diff-algorithm: --abbrev? --full-index --binary --submodule? --ignore-submodules? --function-context --inter-hunk-context: --no-prefix " +
		"--src-prefix: --dst-prefix: --text --patch-with-stat --compact-summary --pickaxe-all --pickaxe-regex --output! --ext-diff! --textconv! "
	gitLog = gitDiff + "iEFPcmg n: L: --oneline --graph --decorate? --no-decorate --all --branches? --tags? --remotes? --format: --pretty? --abbrev-commit --no-merges --merges " +
		"--first-parent --reverse --since: --after: --until: --before: --author: --committer: --grep: --max-count: --skip: --follow --date: --left-right --cherry-pick --cherry-mark " +
		"--topo-order --date-order --author-date-order --no-walk? --source --walk-reflogs --full-history --ancestry-path --boundary --invert-grep --all-match " +
		"--regexp-ignore-case --not --exclude: --glob: --no-notes --notes? --use-mailmap --mailmap --log-size --relative-date --parents --children --dense --sparse --cc " +
		"--diff-merges: --simplify-by-decoration --simplify-merges --count --objects --no-expand-tabs --left-only --right-only --min-parents: --max-parents: --fixed-strings --perl-regexp --extended-regexp "
	gitFetch = "qvapPtnfuk46 j: o: --all --prune --prune-tags --tags --no-tags --depth: --deepen: --unshallow --dry-run --force --quiet --verbose --progress --no-progress --jobs: --multiple " +
		"--shallow-since: --shallow-exclude: --recurse-submodules? --no-recurse-submodules --set-upstream^ --atomic --append --update-head-ok --refmap: --filter: --porcelain --ipv4 --ipv6 --upload-pack! "
	gitMerge = "nqve m: X: s= F: --ff --no-ff --ff-only --squash --no-squash --commit --no-commit --abort --continue --quit --skip --edit --no-edit --message: --strategy= --strategy-option: --stat " +
		"--no-stat --log? --allow-unrelated-histories --verbose --quiet --signoff --autostash --no-autostash --no-verify --no-rerere-autoupdate --into-name: "
)

type gitCommand struct{ names, flags, opts string }

// gitCommands are the sub-commands that are understood. Flags: n uses the
// network, w writes the repository, c changes its configuration, ! runs programs
// by design.
var gitCommands = []gitCommand{
	{"status", "", "sbvz u? --short --branch --porcelain? --long --verbose --untracked-files? --ignored? --show-stash --no-renames --find-renames? --ahead-behind --no-ahead-behind --column? --no-column --ignore-submodules?"},
	{"diff diff-tree diff-index diff-files range-diff", "", gitDiff + "rmcv --root --no-commit-id --stdin --cc --no-dual-color --creation-factor: --base --ours --theirs"},
	{"log show rev-list whatchanged", "", gitLog + "--follow"},
	{"shortlog", "", "nsec w? --numbered --summary --email --no-merges --all --since: --until: --author: --group: --format: --committer --first-parent"},
	{"blame annotate", "", "wlesfnptcb L: C? M? S: --since: --date: --porcelain --line-porcelain --show-email --show-name --show-number --root --incremental --abbrev? --ignore-rev: --ignore-revs-file: --first-parent --color-lines --color-by-age --reverse"},
	{"grep", "", "#ivnlLcwhHoFGEPpWzraIq A: B: C: e: f: m: --line-number --ignore-case --files-with-matches --files-without-match --name-only --count --word-regexp --cached --untracked --no-index --and --or --not --all-match --heading --break --show-function --function-context --fixed-strings --extended-regexp --perl-regexp --basic-regexp --max-depth: --max-count: --only-matching --column --color? --no-color --recurse-submodules --text --exclude-standard --no-exclude-standard --full-name --invert-match --quiet --threads: --null --context: --after-context: --before-context: O! --open-files-in-pager! --textconv!"},
	{"ls-files", "", "cdmoiskuvztf x: X: --cached --deleted --modified --others --ignored --stage --unmerged --exclude-standard --exclude: --exclude-from: --error-unmatch --full-name --eol --directory --no-empty-directory --abbrev? --recurse-submodules --format: --deduplicate"},
	{"ls-tree", "", "drtlz --name-only --name-status --full-name --full-tree --long --abbrev? --format: --object-only"},
	{"cat-file", "", "tsep --batch? --batch-check? --batch-all-objects --unordered --buffer --filters! --textconv!"},
	{"rev-parse", "", "q --short? --abbrev-ref? --verify --show-toplevel --git-dir --absolute-git-dir --git-common-dir --git-path --show-prefix --show-cdup --show-superproject-working-tree --is-inside-work-tree --is-inside-git-dir --is-bare-repository --is-shallow-repository --symbolic --symbolic-full-name --quiet --all --branches? --tags? --remotes? --revs-only --no-revs --flags --no-flags --sq --default: --not --disambiguate: --show-object-format"},
	{"merge-base name-rev show-ref show-branch cherry for-each-ref check-ignore check-attr count-objects var version verify-commit verify-tag ls-remote describe check-ref-format merge-tree patch-id stripspace fsck", "",
		"avqnzshtldH o: --all --is-ancestor --octopus --independent --fork-point --tags --heads --branches --refs --always --name-only --verify --hash? --format: --sort: --count: --merged? --no-merged? --contains? --no-contains? --points-at: --ignore-case --verbose --non-matching --no-index --stdin --cached --human-readable --quiet --symref --get-url --exit-code --long --dirty? --broken? --abbrev: --match: --exclude: --exact-match --candidates: --first-parent --full --strict --unreachable --lost-found --no-reflogs --no-dangling --progress --connectivity-only --branch --normalize --upload-pack! --exec!"},
	{"add stage", "w", "AunvfpieN --all --update --dry-run --verbose --force --patch --interactive --intent-to-add --refresh --ignore-errors --no-all --chmod: --renormalize --pathspec-from-file: --sparse"},
	{"rm", "w", "rfnq --cached --force --dry-run --quiet --ignore-unmatch --sparse"},
	{"mv", "w", "fknv --force --dry-run --verbose"},
	{"commit", "w", "amsvqneiopz m: F: C: c: t: u? --message: --all --amend --no-edit --edit --file: --signoff --no-verify --verify --quiet --verbose --allow-empty --allow-empty-message --author: --date: --reset-author --fixup: --squash: --dry-run --short --porcelain --only --include --no-gpg-sign --trailer: --cleanup: --reuse-message: --reedit-message: --status --no-status --branch --long --patch --no-post-rewrite"},
	{"branch", "w", "arvlqfdDmMcCit u^ --list? --all --remotes --verbose --show-current --delete --move --copy --force --contains? --no-contains? --merged? --no-merged? --points-at: --sort: --format: --column? --no-column --color? --no-color --set-upstream-to^ --unset-upstream^ --set-upstream^ --track? --no-track --quiet --ignore-case --abbrev? --edit-description!"},
	{"checkout", "w", "qfltdpm b: B: --quiet --force --detach --ours --theirs --patch --track? --no-track --orphan: --conflict: --merge --ignore-skip-worktree-bits --recurse-submodules? --no-guess --guess --overwrite-ignore --no-overwrite-ignore --progress --no-progress"},
	{"switch", "w", "qfdtm c: C: --create: --force-create: --detach --discard-changes --track? --no-track --orphan: --force --merge --quiet --guess --no-guess --conflict: --progress --no-progress"},
	{"restore", "w", "SWqpm s: --source: --staged --worktree --quiet --patch --ours --theirs --merge --overlay --no-overlay --pathspec-from-file: --ignore-unmerged"},
	{"reset", "w", "qpN --soft --mixed --hard^ --merge --keep --quiet --no-refresh --refresh --patch"},
	{"stash", "w", gitLog + "kqm: --include-untracked --all --keep-index --no-keep-index --message: --index --only-untracked --pathspec-from-file:"},
	{"merge", "w", gitMerge},
	{"rebase", "w", "iqvnfkrmp X: s= C: --onto: --abort --continue --skip --quit --interactive --autosquash --no-autosquash --autostash --no-autostash --root --keep-base --rebase-merges? --no-rebase-merges --strategy= --strategy-option: --edit-todo --show-current-patch --stat --no-stat --no-verify --update-refs --committer-date-is-author-date --fork-point --no-fork-point --reapply-cherry-picks --force-rebase --no-ff --signoff --quiet --verbose --empty: --apply --merge --ignore-whitespace --whitespace: x! --exec!"},
	{"cherry-pick revert", "w", "nexs m: X: --no-commit --abort --continue --skip --quit --edit --no-edit --mainline: --signoff --allow-empty --allow-empty-message --keep-redundant-commits --strategy= --strategy-option: --ff"},
	{"clean", "w", "ndxXqi f^ e: --force^ --dry-run --quiet --exclude: --interactive"},
	{"tag", "w", "alndsfvi m: F: n? --list? --delete --annotate --message: --force --sort: --contains? --no-contains? --points-at: --merged? --no-merged? --format: --column? --no-column --verify --file: --cleanup: --ignore-case --no-sign --create-reflog"},
	{"worktree", "w", "fdqvzn b: B: --detach --force --porcelain --checkout --no-checkout --lock --expire: --dry-run --verbose --quiet --track --no-track --orphan --reason: --guess-remote"},
	{"apply am", "w", "RvqNz3sick p: C: --check --stat --numstat --summary --index --cached --reverse --3way --verbose --whitespace: --exclude: --include: --directory: --reject --unidiff-zero --recount --intent-to-add --allow-empty --ignore-whitespace --ignore-space-change --inaccurate-eof --continue --skip --abort --quit --signoff --keep-cr --show-current-patch? --quiet --no-verify"},
	{"notes reflog gc prune-packed pack-refs repack prune update-index update-ref symbolic-ref read-tree write-tree commit-tree hash-object mktree mktag unpack-objects index-pack pack-objects rerere commit-graph multi-pack-index", "w",
		"#qdmzatwufvlnAip: m: F: b: n: --all --auto --prune? --aggressive --quiet --force --expire? --expire-unreachable? --refresh --really-refresh --add --remove --chmod: --assume-unchanged --no-assume-unchanged --skip-worktree --no-skip-worktree --stdin --cacheinfo --force-remove --unmerged --short --delete --no-deref --path: --literally --stdin-paths --no-filters --message: --date: --oneline --format: --empty --reset --dry-run --verbose --cruft --keep-largest-pack --write"},
	{"bisect", "w", "--no-checkout --first-parent --term-new: --term-old: --term-good --term-bad"},
	{"init", "w", "q b: --bare --initial-branch: --quiet --object-format: --shared? --template!"},
	{"format-patch", "", gitLog + "kNsv: o> --output-directory> --stdout --cover-letter --subject-prefix: --numbered --no-numbered --start-number: --signature: --no-signature --thread? --zero-commit --base: --reroll-count: --rfc --signoff"},
	{"archive", "", "#lv o> --format: --prefix: --output> --list --verbose --worktree-attributes --add-file: --exec! --remote!"},
	{"bundle", "w", "q --all --quiet --progress --branches --tags --since: --version:"},
	{"clone", "n", "nqvls b: o: j: --depth: --branch: --single-branch --no-single-branch --no-checkout --bare --mirror --quiet --verbose --progress --no-progress --origin: --recurse-submodules? --recursive --shallow-since: --shallow-submodules --filter: --no-tags --tags --sparse --jobs: --local --shared --no-hardlinks --dissociate --reference: --reference-if-able: --separate-git-dir> c! u! --config! --upload-pack! --template!"},
	{"fetch", "nw", gitFetch},
	{"pull", "nw", gitFetch + gitMerge + "r? --rebase? --no-rebase"},
	{"push", "nw", "qvnu^f^d^46 o: --all --tags --branches --dry-run --porcelain --quiet --verbose --progress --no-progress --set-upstream^ --force^ --force-with-lease^ --force-if-includes^ --no-force-with-lease --delete^ --mirror^ --prune^ --follow-tags --no-verify --atomic --push-option: --repo: --thin --no-thin --signed? --recurse-submodules: --ipv4 --ipv6 --receive-pack! --exec!"},
	{"remote", "w", "vf^n t: m: --verbose --push --all --add --delete --tags --no-tags --fetch^ --mirror? --prune --dry-run --auto"},
	{"submodule", "w", "qfNi b: j: --quiet --cached --recursive --init --remote --merge --rebase --checkout --depth: --jobs: --force --branch: --name: --reference: --single-branch --all --no-fetch --progress --summary-limit: --files --default --recommend-shallow"},
	{"config", "", "lze^ f: --get^ --get-all^ --get-regexp^ --get-urlmatch^ --list^ l^ --show-origin --show-scope --show-names --global --local --system --worktree --name-only --null --type: --bool --int --path --bool-or-int --default: --file: --includes --no-includes --all --regexp --value: --url: --fixed-value --edit^ --unset^ --unset-all^ --add^ --replace-all^ --rename-section^ --remove-section^"},
	{"sparse-checkout", "w", "--cone --no-cone --stdin --skip-checks --sparse-index --no-sparse-index"},
	{"difftool mergetool filter-branch filter-repo daemon send-email instaweb gui citool gitk web--browse credential svn p4 http-backend upload-pack receive-pack upload-archive remote-ext remote-fd shell maintenance", "!", ""},
}

// gitDoes says more of some: what a first word, an option or any use ("*") does.
// Flags beside those above: f rewrites or deletes elsewhere, t throws away, l changes
// a history, r only reads.
var gitDoes = map[string]string{
	"ls-remote": "*:n", "prune": "*:l", "gc": "--prune:l", "reflog": "expire:l delete:l drop:l", "reset": "--hard:t", "clean": "-f:t --force:t", "stash": "drop:t clear:t",
	"fetch": "--set-upstream:c", "pull": "--set-upstream:c", "branch": "-u:c --set-upstream-to:c --unset-upstream:c --set-upstream:c", "bisect": "run:! view:! visualize:!", "sparse-checkout": "init:c set:c add:c reapply:c disable:c",
	"push":      "-u:c --set-upstream:c -f:f -d:f --force:f --force-with-lease:f --force-if-includes:f --delete:f --mirror:f --prune:f",
	"remote":    "update:n prune:n show:n add:c remove:c rm:c rename:c set-url:c set-head:c set-branches:c -f:n --fetch:n",
	"submodule": "foreach:! update:n add:nc init:c deinit:c set-url:c set-branch:c sync:c absorbgitdirs:c",
	"config":    "--get:r --get-all:r --get-regexp:r --get-urlmatch:r --list:r -l:r get:r list:r --edit:!c -e:!c edit:!c --unset:c --unset-all:c --add:c --replace-all:c --rename-section:c --remove-section:c",
}

// gitGlobal are the options before the sub-command.
const gitGlobal = "+ Ph C= c= p! --no-pager --no-replace-objects --no-optional-locks --literal-pathspecs --glob-pathspecs --icase-pathspecs --no-advice --version --help --html-path " +
	"--man-path --git-dir! --work-tree! --namespace! --bare! --paginate! --exec-path! --config-env! --super-prefix! --list-cmds: --attr-source:"

// gitPlainSettings are the keys that -c may set without a program being named.
const gitPlainSettings = " user. color. advice. core.quotepath core.autocrlf core.filemode core.abbrev core.safecrlf core.ignorecase init.defaultbranch log. diff.renames diff.color diff.algorithm diff.context " +
	"diff.mnemonicprefix diff.noprefix merge.conflictstyle merge.ff pull.rebase pull.ff rebase.autostash rebase.autosquash commit.gpgsign commit.verbose tag.gpgsign push.default push.autosetupremote " +
	"fetch.prune gc.auto status. column. blame. grep. safe.directory http.postbuffer http.lowspeedlimit http.lowspeedtime i18n. versionsort. branch.sort tag.sort submodule.recurse "

func gitPlainSetting(kv Word) bool {
	key, value, _ := strings.Cut(kv.Text, "=")
	key = strings.ToLower(key)
	if !kv.Const || key == "" {
		return false
	}
	section, _, _ := strings.Cut(key, ".")
	return listed(gitPlainSettings, key) || listed(gitPlainSettings, section+".") || listed(" core.pager pager.log pager.diff ", key) && (value == "cat" || value == "")
}

func readGit(a *analysis, c *command, o *options) {
	g := readOptions(gitGlobal, c.words[1:])
	if len(g.operands) == 0 && g.unknown == "" && g.bad == "" && !g.loose {
		return // git --version
	}
	config := false // -c with settings that name no program
	exec := g.bad != "" || g.unknown != "" || g.loose
	for _, s := range g.seen {
		config = config || s.name == "-c"
		if s.name == "-c" && !gitPlainSetting(s.val) {
			exec, g.bad = true, "-c"
		}
	}
	if g.bad != "" && g.bad != "--git-dir" && g.bad != "--work-tree" && g.bad != "--bare" {
		a.warn("git " + g.bad + " can make it run or load something else")
	}
	sub := g.firm()
	e := gitIndex[sub]
	if e == nil {
		c.limit("its sub-command is not known: it may be an alias or another program")
		a.notGit = true
		return
	}
	if n := len(c.words) - len(g.operands); n > 1 { // a rule for "git push" is one for "git -C x push"
		argv := a.argv[len(a.argv)-1]
		a.argv = append(a.argv, append([]string{argv[0]}, argv[n:]...))
	}
	s := readOptions(e.opts, g.operands[1:])
	flags := e.flags + gitEffects(sub, s, g.operands)
	if strings.Contains(flags, "!") || s.bad != "" {
		a.warn("git " + sub + " " + s.bad + " can make it run or load something else")
		exec = true
	}
	exec = exec || s.unknown != "" || s.loose
	if exec || config {
		c.limit("this form of it can run something else or write elsewhere")
	}
	if strings.Contains(flags, "n") {
		a.network = true
		a.downloads = a.downloads || sub == "clone" || sub == "submodule"
	}
	for _, w := range []struct{ flag, why string }{
		{"f", "git " + sub + " that rewrites or deletes what is there (force)"}, {"?", "git " + sub + " with words that may force it"},
		{"t", "git " + sub + " that throws changes or files away"}, {"l", "changes a log or a history"}, {"c", "changes the repository's configuration"},
	} {
		if strings.Contains(flags, w.flag) && !(w.flag == "?" && strings.Contains(flags, "f")) {
			a.warn(w.why)
		}
	}
	a.gitConfig = a.gitConfig || strings.Contains(flags, "c")
	a.gitWrite = a.gitWrite || strings.Contains(flags, "w")
	a.notGit = a.notGit || exec
	if g.has("-C") {
		c.cwd = &cwd{[]folder{{any: true}}} // paths are relative to it
	}
	o.seen, o.operands = s.seen, nil
	made := map[string]int{"clone": 1, "init": 0, "worktree add": 1, "worktree move": 2, "bundle create": 1}
	n, ok := made[sub]
	if !ok {
		n, ok = made[sub+" "+s.firm()]
	}
	if ok && len(s.operands) > n {
		a.writeWord(s.operands[n], c.cwd)
	}
}

// gitEffects says what a sub-command does beside what its flags in the table say.
func gitEffects(sub string, s *options, words []Word) string {
	flags, first := "", s.firm()
	for f := range strings.FieldsSeq(gitDoes[sub]) {
		if key, does, _ := strings.Cut(f, ":"); key == "*" || key == first || s.has(key) {
			flags += does
		}
	}
	for _, w := range words {
		text := w.Text + w.Prefix
		// helper::address has git run git-remote-helper.
		if strings.Contains(text, "::") && listed(" clone fetch pull push ls-remote remote submodule ", sub) {
			s.bad = "helper::"
		}
		if sub == "push" && (strings.HasPrefix(text, "+") || strings.HasPrefix(text, ":")) {
			flags += "f"
		}
	}
	for _, o := range s.seen { // and a strategy of another name git-merge-name
		if (o.name == "-s" || o.name == "--strategy") && !(o.val.Const && listed(" ort recursive resolve octopus ours subtree ", o.val.Text)) {
			s.bad = "--strategy"
		}
	}
	unsure := s.loose || s.unknown != ""
	if sub == "push" && unsure {
		flags += "?"
	}
	if read := strings.Contains(flags, "r"); sub == "config" && !read && (unsure || len(s.operands) != 1) {
		flags += "c"
	}
	return flags
}

// gitAccess says whether the line may have the repository writable, and its
// configuration too.
func (a *analysis) gitAccess() (write, config bool) {
	write = (a.gitWrite || a.gitConfig) && !a.notGit
	return write, write && a.gitConfig
}
