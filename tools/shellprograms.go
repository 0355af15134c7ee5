package tools

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
)

// A program is what is known of one program's command line.
//
// opts lists the options whose meaning is known, separated by blanks: a field
// without a dash is a cluster of one-letter options ('#' for any digits), a
// field with two is a long option, and if opts begins with one dash all are words
// with one ("-o", "-race"; a trailing '*' stands for all that begin so). A
// leading '+' field says that options end at the first operand. A mark after an
// option says more:
//
//	:  takes a value        >  takes a path, which is written
//	?  may have one         =  takes a value that the reader looks at
//	^  the reader looks     .  takes code; what follows are its arguments
//	!  makes it run, load or send something else, or take its settings from elsewhere
//	%  the words up to ";" are a command that it runs
type program struct {
	opts   string
	strict bool                                // an option that is not listed may do what '!' says
	code   string                              // why it never has a standing grant
	stdin  bool                                // without a script it runs what it reads
	shell  bool                                // and that is shell
	net    string                              // sub-commands that use the network, between blanks; "*" for every use
	writes byte                                // operands that it writes: 'a' all, 'l' the last, 'r' all after the first, '2' the second
	warn   string                              // what a person must see whenever it runs
	wrap   int                                 // runs its operands as a command, after wrap-1 of its own
	vars   bool                                // and after NAME=value words
	opaque string                              // why a line with it cannot be analysed
	read   func(*analysis, *command, *options) // what else there is to see
}

const (
	givenCode = "it runs code that it is given"
	workCode  = "it runs what files in the workspace say"
	startsAny = "it can start other programs"
	broadRoot = "runs with the rights of another user"

	binaryOptions = "abcdDeghilnpPqrsStTuvwWxX A f: j: M: --version --demangle? --defined-only --extern-only --undefined-only --dynamic --size-sort --numeric-sort --strip-all --strip-debug --plugin! o> --disassemble? --syms --headers --section:"
)

type programEntry struct {
	names string
	program
}

// programTable is what is known; see lookupProgram.
func programTable() []programEntry {
	return []programEntry{
		// Shells and interpreters.
		{"sh dash bash ash", program{opts: "+ efilmnuvxbC o= c. s^ --norc --noprofile --posix --login --verbose --rcfile! --init-file!", code: givenCode, stdin: true, shell: true, read: readInterpreter}},
		{"zsh ksh mksh oksh yash fish csh tcsh rbash elvish nu nushell xonsh osh ysh murex", program{opts: "+ efilnvxu o= c. s^ --login --no-rcs --no-config --norc", code: givenCode, stdin: true, shell: true, read: readInterpreter}},
		{"python pypy", program{opts: "+ bBdEhiIOPqRsSuvVx W: X: c. m. --version --help", code: givenCode, stdin: true, read: readInterpreter}},
		{"perl", program{opts: "+ acnplsStTuUvwWX e. E. i? I: M? m? 0? F? C? D? x? l? --version", code: givenCode, stdin: true, read: readInterpreter}},
		{"node nodejs", program{opts: "+ e. p. c r: i v h C: --eval. --print. -pe. --check --require: --import: --test --watch --no-warnings --loader: --experimental-strip-types --input-type: --version", code: givenCode, stdin: true, read: readInterpreter}},
		{"ruby", program{opts: "+ nplaswvcSUdh e. r: I: C: E: W? 0? i? x? T? F? --version --disable: --enable:", code: givenCode, stdin: true, read: readInterpreter}},
		{"php", program{opts: "+ nqlwvsim r. B. R. E. f: d: c: z: --version --ini", code: givenCode, stdin: true, read: readInterpreter}},
		{"janet fennel bb babashka clj clojure raku perl6 micropython jython graalpy hy sage gap wolframscript matlab ginsh ghc jjs jrunscript knife puppet facter pry byebug pdb rc es sash slsh octave-cli tasksh gimp lua luajit tclsh wish guile Rscript R julia octave scala kotlin groovy ghci runghc runhaskell elixir iex erl escript swift osascript pwsh powershell sbcl clisp racket scheme gst ocaml irb psysh ipython jshell gnuplot gs m4 dc expect maxima gp bpftrace stap gdb lldb debugfs",
			program{opts: "+ e. c. --eval. --expression. --version --vanilla", code: givenCode, stdin: true, read: readInterpreter}},
		{"awk gawk mawk nawk original-awk", program{opts: "+ F: v: f= --file= --version", code: givenCode, read: readAwk}},
		{"java javac javaw dotnet mono deno bun tsx ts-node npx bunx zig crystal nim dart flutter jupyter sqlite3 sqlite psql mysql mariadb mongo mongosh duckdb redis-cli ed ex vi vim view vimdiff nvim emacs nano pico micro helix hx code codium subl vipe vidir electron rvim rview gvim gview vimtutor nvi elvis joe jed mg kak zed red", program{code: givenCode, net: " install add create upgrade update "}},
		{"npm pnpm yarn", program{code: workCode, net: " install i ci add update upgrade up outdated view info search publish login audit create init dlx exec create-react-app fund ping pack whoami "}},
		{"cargo rustup rustc", program{code: workCode, net: " fetch update install add search publish login yank toolchain target component self "}},
		{"pip pipx uv uvx poetry conda mamba pipenv pdm hatch rye easy_install", program{code: workCode, net: " install download add sync update upgrade lock search wheel create run publish remove tool pip "}},
		{"gem bundle bundler rake composer cpan cpanm luarocks opam stack cabal mix rebar3 hex leiningen lein", program{code: workCode, net: " install update add require fetch push deps.get outdated search build create-project "}},
		{"make gmake bmake nmake mk cmake ctest ninja meson bazel bazelisk buck buck2 scons waf just task mage ant gradle gradlew mvn mvnw sbt mill msbuild xcodebuild b2 tup redo autoreconf configure libtool pytest py.test tox nox jest vitest mocha ava karma cypress playwright eslint webpack vite rollup next nuxt gulp grunt lerna nx turbo pre-commit husky lefthook nodemon pm2 foreman concurrently phpunit rspec protoc buf goreleaser air wire mockgen mypy pylint flake8 golangci-lint gotestsum ginkgo prettier stylelint rubocop commitlint lint-staged babel postcss tailwindcss storybook astro ng expo semantic-release pod fastlane bats behave coverage flask django-admin gunicorn uvicorn celery streamlit alembic rails rackup puma sidekiq thor sphinx-build mkdocs jekyll doxygen hugo cookiecutter skaffold tilt",
			program{code: workCode, net: " dependency:resolve "}},
		{"cc gcc g++ c++ clang clang++ cpp tcc", program{opts: "-c -S -E -o> -g* -O* -I* -L* -l* -D* -U* -std=* -pedantic* -ansi -w -v -pipe -M -MM -MD -MMD -MP -MF> -MT: -MQ: -x: -shared -static* -pthread -pg -p -march=* -mtune=* -mcpu=* -m32 -m64 -msse* -mavx* -fPIC -fpic -fPIE -fpie -fno-* -fsanitize=* -fstack-protector* -fvisibility=* -fopenmp -fomit-frame-pointer -ffast-math -fcommon -fdiagnostics-color* -fprofile-arcs -ftest-coverage -flto -fwrapv -fexceptions -fmax-errors=* -Wl,*! -Wa,*! -Wp,*! -W* -rdynamic -nostdlib -include: -isystem: -iquote: -idirafter: -save-temps -print-* -dumpversion -dumpmachine --version --help -wrapper! -B*! -specs*! -fplugin*! -fuse-ld*! -fmodule-mapper*! -Xlinker! -Xclang! -T! -load! -iplugindir*!", strict: true}},
		{"convert magick mogrify montage composite identify conjure ldd xterm gnome-terminal konsole alacritty kitty agetty certbot busctl gdbus dbus-send qdbus loginctl update-alternatives run-mailcap xdotool scrot msgfilter dmsetup tshark wireshark dumpcap crash csvtool cobc dosbox gtester pygmentize cowsay cowthink sqlmap mc ranger nnn lf vifm tig lazygit vigr npm-run-all run-s run-p prove pyenv rbenv nodenv asdf editor sensible-editor sensible-pager sensible-browser posh pandoc c89 c99 gcc-ar gcc-nm gcc-ranlib", program{code: startsAny}},
		{"sudoedit run0", program{code: broadRoot, warn: broadRoot}},
		{"ld ld.bfd ld.gold ld.lld lld gold as collect2", program{code: startsAny}},
		{"strip ranlib", program{opts: binaryOptions, strict: true, writes: 'a'}},
		{"objcopy", program{opts: binaryOptions, strict: true, writes: 'l'}},
		{"ar nm objdump size readelf addr2line", program{opts: binaryOptions, strict: true}},
		{"go", program{read: readGo}},
		{"git", program{read: readGit}},

		// What runs its arguments.
		{"env", program{opts: "+ i 0 v u: --ignore-environment --unset: --null", wrap: 1, vars: true}},
		{"nohup setsid unbuffer eatmydata fakeroot chronic ifne", program{opts: "+ c f w --wait --fork --ctty --version", wrap: 1}},
		{"ccache sccache distcc icecc grc multitime", program{opts: "+ c C s z V", wrap: 1}},
		{"nice", program{opts: "+ # n: --adjustment:", wrap: 1}},
		{"ionice", program{opts: "+ c: n: t --class: --classdata: --ignore", wrap: 1}},
		{"time", program{opts: "+ p v a q f: o> --portability --verbose --append --quiet --format: --output>", wrap: 1}},
		{"timeout gtimeout", program{opts: "+ v s: k: --signal: --kill-after: --preserve-status --foreground --verbose", wrap: 2}},
		{"stdbuf", program{opts: "+ i: o: e: --input: --output: --error:", wrap: 1}},
		{"chrt", program{opts: "+ a b f i o r v --batch --fifo --idle --other --rr", wrap: 2}},
		{"taskset", program{opts: "+ a c --cpu-list --all-tasks", wrap: 2}},
		{"flock", program{opts: "+ e n s u x o w: E: --exclusive --nonblock --shared --unlock --wait: --timeout: --close", wrap: 2}},
		{"caffeinate", program{opts: "+ d i m s u t:", wrap: 1}},
		{"xargs gxargs", program{opts: "+ 0 r t p x o a: d: E: I= i? J= L: l? n: P: s: R: --null --no-run-if-empty --verbose --exit --max-args: --max-procs: --max-chars: --max-lines? --delimiter: --arg-file: --replace? --open-tty", wrap: 1, read: readXargs}},
		{"busybox toybox systemd-cat nyc c8 cross-env env-cmd wine wine64 qemu-x86_64 qemu-aarch64 xcrun", program{opts: "+", wrap: 1, vars: true, code: startsAny}},
		{"sudo", program{opts: "+ A b E H k K l n P S v V i^ s^ e^ u: g: h: p: C: T: D: R: r: t: --user: --group: --non-interactive --preserve-env? --login^ --shell^ --edit^ --stdin", wrap: 1, vars: true, code: broadRoot, warn: broadRoot}},
		{"doas pkexec", program{opts: "+ n s^ L u: C: --user: --keep-cwd", wrap: 1, code: broadRoot, warn: broadRoot}},
		{"su runuser sg newgrp", program{code: broadRoot, warn: broadRoot, opts: "lmpP c. s: g: G: --login --command. --shell: --preserve-environment", read: readSu}},
		{"parallel watch script sem entr chroot unshare nsenter schroot systemd-run systemd-nspawn systemd-inhibit setpriv capsh prlimit setarch linux32 linux64 i386 x86_64 uname26 dbus-run-session dbus-launch xvfb-run xinit fakechroot proxychains proxychains4 torsocks tsocks firejail bwrap proot cgexec numactl start-stop-daemon daemonize daemon run-parts choom setuidgid envdir softlimit chpst s6-setuidgid gosu su-exec tini dumb-init ltrace strace valgrind perf rr catchsegv nix-shell nix guix direnv dotenv hyperfine runcon openvt logsave aa-exec aoss cpulimit genie pexec setlock sshpass torify mpirun mpiexec srun timelimit ts-watch watchexec inotifyd dlv rlwrap ssh-agent gpg-agent faketime lxc-attach machinectl at batch pee zrun mispipe lckdo msgexec pidstat trickle runc crun ctr apptainer singularity toolbox distrobox flatpak-spawn host-spawn gdbserver lldb-server reflex modd CompileDaemon cargo-watch",
			program{code: startsAny, opaque: "it starts programs in a way that cannot be followed"}},
		{"lxc incus limactl lima colima multipass virsh pic perldoc reportbug cscope duplicity rsnapshot fetchmail getmail mbsync sshd nix-build nix-instantiate dpkg-source debuild volta fnm tmux screen zellij fzf sk docker docker-compose podman podman-compose earthly dagger kustomize eksctl argocd flux sam cdk serverless sls supabase firebase borg restic nerdctl buildah kubectl oc helm minikube kind vagrant packer terraform tofu terragrunt ansible ansible-playbook pulumi salt fab dokku act open xdg-open gio rename prename exiftool troff groff latex pdflatex xelatex lualatex tex pdftex xetex luatex dvips latexmk gpg gpg2 tcpdump patch dpkg rpm rpmquery rpmdb rpmverify logrotate ssh-add svn hg bzr fossil cvs darcs snap flatpak brew apt apt-get aptitude dnf yum zypper pacman apk emerge port nix-env choco winget scoop",
			program{code: startsAny, net: " pull push login build run create compose search manifest init plan apply destroy get describe logs exec delete rollout port-forward scale patch wait uninstall rollback cluster-info repo pr issue release api auth clone fetch update upgrade install add dist-upgrade full-upgrade -S -Sy -Syu checkout commit co up ci download up provision "}},

		{"aria2c smbclient sshfs sshuttle rtorrent mosquitto openvpn dnsmasq tmate psftp alpine lwp-request nc ncat netcat socat sftp lftp ncftp rclone nmap mutt mail mailx sendmail msmtp gh glab hub heroku telnet rsh websocat wscat w3m lynx links elinks",
			program{code: startsAny, net: "*"}},

		// Programs with a way to run or load something, or to write anywhere.
		{"ssh autossh mosh", program{opts: "+ 1246AaCfGgKkMNnqsTtVvXxY b: c: D: e: i: J: L: l: m: O: p: Q: R: W: w: B: o= F! E> S! I!", strict: true, code: startsAny, net: "*", read: readSSH}},
		{"scp", program{opts: "346BCpqrTvAR c: i: l: P: J: X: o= F! S! D!", strict: true, net: "*", writes: 'l', read: readSSH}},
		{"rsync", program{opts: "avzhnPrlptgoDuxcHAXSqiRWIyCFmLKkOJEdb0 f: T> B: M! e! --archive --verbose --delete --delete-after --delete-before --delete-excluded --exclude: --include: --filter: --exclude-from: --include-from: --files-from: --dry-run --progress --partial --stats --human-readable --checksum --compress --update --ignore-existing --existing --recursive --links --perms --times --owner --group --size-only --bwlimit: --timeout: --max-size: --min-size: --itemize-changes --info: --mkpath --inplace --relative --no-owner --no-group --no-perms --numeric-ids --chmod: --rsh! --rsync-path! --daemon! --config! --log-file> --backup-dir> --partial-dir> --temp-dir> --write-batch> --only-write-batch> --remote-option!", strict: true, writes: 'l', read: readRsync}},
		{"curl", program{opts: "#0123456afgGiIjJkLlMnNpqRsSvV H: X: d: F: A: e: u: b: m: r: z: y: Y: o> O^ D> c> T: w= x! K! t: --request: --header: --data: --data-raw: --data-binary: --data-urlencode: --json: --form: --form-string: --user: --user-agent: --referer: --cookie: --cookie-jar> --dump-header> --output> --output-dir> --remote-name^ --remote-name-all^ --remote-header-name --create-dirs --location --silent --show-error --fail --fail-with-body --include --head --insecure --verbose --compressed --max-time: --connect-timeout: --retry: --retry-delay: --retry-max-time: --retry-all-errors --retry-connrefused --get --url= --range: --continue-at: --write-out= --no-progress-meter --progress-bar --http1.1 --http2 --http2-prior-knowledge --ipv4 --ipv6 --max-redirs: --limit-rate: --tlsv1.2 --tlsv1.3 --upload-file: --no-buffer --globoff --path-as-is --oauth2-bearer: --parallel --version --help --noproxy: --max-filesize: --proto: --trace> --trace-ascii> --stderr> --etag-save> --hsts> --alt-svc> --config! --proxy! --preproxy! --socks5! --socks5-hostname! --unix-socket! --abstract-unix-socket! --engine! --libcurl> --netrc-file! --resolve! --connect-to! --doh-url! --interface! --dns-servers!", strict: true, net: "*", read: readCurl}},
		{"wget wget2", program{opts: "qvcNrlkpLHxnSbdV46 # t: O> o> a> P> T: w: Q: l: A: R: D: I: X: U: i: B: e! --quiet --no-verbose --verbose --continue --recursive --level: --no-parent --timestamping --convert-links --page-requisites --mirror --spider --server-response --tries: --timeout: --wait: --random-wait --limit-rate: --user-agent: --header: --method: --body-data: --post-data: --post-file: --user: --password: --no-check-certificate --no-clobber --show-progress --progress: --output-document> --output-file> --append-output> --directory-prefix> --no-directories --no-host-directories --cut-dirs: --accept: --reject: --max-redirect: --input-file: --content-disposition --version --execute! --use-askpass! --config! --ca-certificate: --save-cookies> --warc-file> --rejected-log> --hsts-file> --load-cookies:", strict: true, net: "*", read: readWget}},
		{"find gfind", program{opts: "-name= -iname= -path= -ipath= -wholename= -iwholename= -regex= -iregex= -regextype= -type= -xtype= -size= -mtime= -ctime= -atime= -mmin= -amin= -newer= -anewer= -cnewer= -newermt= -newerct= -newerat= -user= -group= -uid= -gid= -perm= -links= -inum= -samefile= -lname= -ilname= -maxdepth= -mindepth= -printf= -used= -print -print0 -prune -ls -quit -empty -depth -d -xdev -mount -true -false -not -and -or -o -follow -daystart -executable -readable -writable -nouser -nogroup -noleaf -ignore_readdir_race -H -L -P -exec% -execdir% -ok% -okdir% -delete^ -fprint> -fprint0> -fls> -fprintf>", strict: true, read: readFind}},
		{"sed gsed", program{opts: "nErsuz l: e= f= i? --expression= --file= --quiet --silent --regexp-extended --null-data --separate --unbuffered --line-length: --posix --debug --sandbox --follow-symlinks --in-place? --version --help", strict: true, read: readSed}},
		{"tar gtar bsdtar", program{opts: "", strict: true, read: readTar}},
		{"sort gsort", program{opts: "bdfgiMhnRrVcCmsuz k: t: S: T: o> --key: --field-separator: --reverse --unique --numeric-sort --general-numeric-sort --human-numeric-sort --version-sort --month-sort --random-sort --ignore-case --dictionary-order --ignore-leading-blanks --stable --check? --merge --zero-terminated --parallel: --batch-size: --buffer-size: --temporary-directory: --output> --debug --sort: --random-source: --files0-from: --version --help --compress-program!", strict: true}},
		{"rg", program{opts: "#iSsvwxlLcnNHhoqUuFPapbI0V e: f: g: t: T: A: B: C: m: M: r: j: d: E: --regexp: --file: --ignore-case --smart-case --case-sensitive --invert-match --word-regexp --line-regexp --fixed-strings --pcre2 --multiline --multiline-dotall --glob: --iglob: --glob-case-insensitive --type: --type-not: --type-list --hidden --no-ignore --no-ignore-vcs --unrestricted --follow --max-depth: --max-count: --max-columns: --max-filesize: --count --count-matches --files --files-with-matches --files-without-match --line-number --no-line-number --column --heading --no-heading --with-filename --no-filename --only-matching --replace: --context: --after-context: --before-context: --color: --colors: --json --vimgrep --sort: --sortr: --stats --quiet --null --no-messages --trim --pretty --passthru --text --binary --threads: --no-config --debug --version --help --pcre2-version --ignore-file: --no-mmap --encoding: --crlf --one-file-system --engine: --pre! --hostname-bin! --search-zip! z!", strict: true}},
		{"fd fdfind", program{opts: "HIsigaLp0lFu1qV d: t: e: E: S: c: j: --hidden --no-ignore --case-sensitive --ignore-case --glob --fixed-strings --absolute-path --follow --full-path --print0 --max-depth: --min-depth: --type: --extension: --exclude: --size: --changed-within: --changed-before: --color: --list-details x% X% --exec% --exec-batch%", strict: true}},
		{"ag ack", program{opts: "#ilLcwvQsSuahHnrfoxz0 A: B: C: G: m: g: --hidden --ignore: --ignore-case --files-with-matches --count --literal --word-regexp --nocolor --nogroup --color --group --depth: --pager! --type:", strict: true}},
		{"less more most bat batcat", program{opts: "#NSRFXinIeEMmsrpAafP n: l: H: r: --style: --paging: --plain --language: --line-range: --number --color: --theme: --no-init --pager! --list-languages --version", strict: true}},
		{"man info", program{opts: "afkwK s: S: l: --where --all --apropos --whatis --pager! P! H! --html! --sections:", strict: true}},
		{"zip", program{opts: "#rqjymuodDXleFv x: i: n: b> t: P: --exclude: --recurse-paths --quiet --junk-paths T! TT! --test! --unzip-command!", strict: true, writes: '1'}},
		{"cpio", program{opts: "itodmuvBcaLpk0 H: C: --extract --create --list --make-directories --format: --no-absolute-filenames --quiet --null F! O! I! --file! --rsh-command!", strict: true, writes: 'a'}},
		{"split", program{opts: "#bdexnskz a: b: C: l: n: t: --bytes: --lines: --number: --line-bytes: --suffix-length: --numeric-suffixes? --hex-suffixes? --additional-suffix: --verbose --elide-empty-files --filter!", strict: true, writes: '2'}},
		{"csplit", program{opts: "#ksz b: n: f> --prefix> --suffix-format: --digits: --quiet --silent --keep-files --elide-empty-files", strict: true}},
		{"ssh-keygen", program{opts: "qlyvBceLHhkApuxXU t: b: f> C: N: P: E: F: R: m: s: I: n: V: z: O: Y: r: a: M: D! w!", strict: true}},
		{"ip", program{read: readIP}},
		{"diff3 sdiff", program{opts: "aAeEixXmTlsbBWdtw L: I: o> w: --strip-trailing-cr --text --merge --suppress-common-lines --width: --diff-program!", strict: true}},
		{"openssl", program{opts: "-in: -out> -hex -base64 -binary -sha1 -sha224 -sha256 -sha384 -sha512 -md5 -noout -text -subject -issuer -dates -enddate -startdate -fingerprint -serial -modulus -pubkey -pubin -pubout -inform: -outform: -e -d -a -A -aes-256-cbc -pbkdf2 -iter: -salt -k: -pass: -passin: -passout: -x509 -new -newkey: -nodes -keyout> -days: -subj: -key: -req -CA: -CAkey: -CAcreateserial -connect: -servername: -showcerts -verify: -signature: -sign: -r -rand: -engine! -provider! -provider-path! -config! -conf!", strict: true, net: " s_client s_server s_time ocsp "}},
		{"install ginstall", program{opts: "bcCDpsTvZ d^ g: m= o: t> S: --directory^ --mode= --owner: --group: --target-directory> --backup? --suffix: --compare --preserve-timestamps --no-target-directory --verbose --strip --strip-program!", strict: true, writes: 'l', read: readInstall}},

		// Programs that write what they name.
		{"cp gcp ln gln link", program{opts: "abcdFfHhiLlnPprRsTuvxZ t> S: --target-directory> --suffix: --backup? --recursive --archive --force --symbolic --no-clobber --update? --verbose --preserve? --no-preserve: --sparse: --reflink? --parents --no-target-directory", writes: 'l'}},
		{"mv gmv", program{opts: "bfinTuvZ t> S: --target-directory> --suffix: --backup? --force --no-clobber --update? --verbose --no-target-directory", writes: 'a'}},
		{"rm grm", program{opts: "dfiIrRvp f^ r^ R^ --force^ --recursive^ --dir --interactive? --verbose --one-file-system --no-preserve-root^ --preserve-root?", writes: 'a', read: readRm}},
		{"tee gtee sponge mkdir mkfifo rmdir unlink", program{opts: "aipvZ m: --append --ignore-interrupts --output-error? --parents --mode: --verbose --context? --ignore-fail-on-non-empty", writes: 'a'}},
		{"touch gtouch", program{opts: "acfhm d: r: t: --date: --reference: --time: --no-create --no-dereference", writes: 'a'}},
		{"truncate", program{opts: "co r: s: --size: --reference: --no-create --io-blocks", writes: 'a'}},
		{"mknod", program{opts: "m: Z --mode:", warn: "makes a device or a pipe", writes: '1'}},
		{"chmod chown chgrp gchmod gchown", program{opts: "cfvRHLPrwxXstugo R^ h --recursive^ --changes --quiet --silent --verbose --reference= --from: --preserve-root --no-preserve-root --dereference --no-dereference", writes: 'r', read: readChmod}},
		{"unzip", program{opts: "aClLjnoptuvqZ d> x: P: O: I:", read: func(a *analysis, c *command, o *options) {
			for _, w := range o.operands[min(1, len(o.operands)):] {
				a.named(w)
			}
		}}},
		{"dd gdd", program{read: readDD}},
		{"uniq xxd", program{opts: "#cdDiuzpbErapC f: s: w: l: o: g: c: --count --repeated --unique --ignore-case --skip-fields: --skip-chars: --check-chars: --all-repeated? --group? --zero-terminated", writes: '2'}},
		{"gzip gunzip bzip2 bunzip2 xz unxz lzma unlzma zstd unzstd compress uncompress pigz lz4", program{opts: "#adefhkLmnNqrvVz c^ l^ t^ S: o> T: --stdout^ --to-stdout^ --list^ --test^ --decompress --keep --force --recursive --best --fast --suffix: --threads: --output-dir-flat>", writes: 'a', read: func(a *analysis, c *command, o *options) {
			if o.has("-c", "-l", "-t", "--stdout", "--to-stdout", "--list", "--test") {
				o.operands = nil
			}
		}}},
		{"mktemp", program{opts: "dqut p> --directory --dry-run --quiet --suffix: --tmpdir?", writes: 'a'}},
		{"ffmpeg", program{writes: 'l'}},
		{"dot neato fdp sfdp twopi circo", program{opts: "cnOPqvVx G: N: E: K: l: s? T: o>"}},
		{"shuf", program{opts: "#e n: o> i: r z --output> --input-range: --head-count: --random-source: --repeat"}},

		// The network, and what every use of must be seen.
		{"ping ping6 dig nslookup host whois traceroute traceroute6 tracepath mtr arping ftp tftp aws gcloud gsutil az doctl fly flyctl vercel netlify wrangler s3cmd http https xh httpie axel youtube-dl yt-dlp speedtest iperf iperf3 rdate ntpdate ssh-copy-id ssh-keyscan rcp rlogin finger grpcurl hey ab wrk siege", program{net: "*"}},
		{"shutdown reboot halt poweroff init telinit", program{warn: "stops or restarts the machine", code: startsAny}},
		{"systemctl service launchctl initctl rc-service chkconfig update-rc.d", program{warn: "controls the services of the system", code: startsAny}},
		{"crontab atrm", program{warn: "changes what runs later", code: startsAny}},
		{"mkfs mke2fs mkswap fdisk sfdisk gdisk sgdisk cfdisk parted wipefs blkdiscard shred badblocks hdparm nvme cryptsetup lvremove vgremove pvremove mdadm zpool diskutil", program{warn: "erases or changes disks or files for good", code: startsAny, writes: 'a'}},
		{"mount umount insmod modprobe rmmod kexec useradd userdel usermod groupadd groupdel passwd chpasswd visudo vipw iptables ip6tables nft ufw firewall-cmd setcap setfacl chattr sysctl swapoff losetup", program{warn: "changes the system", code: startsAny}},
		{"kill killall pkill", program{read: readKill}},
		{"journalctl", program{opts: "efnrxkqa u: b: p: o: S: U: n: --since: --until: --unit: --no-pager --vacuum-size^ --vacuum-time^ --vacuum-files^ --rotate^ --flush^", read: func(a *analysis, c *command, o *options) {
			if o.has("--vacuum-size", "--vacuum-time", "--vacuum-files", "--rotate", "--flush") || o.unknown != "" {
				a.warn("changes a log or a history")
			}
		}}},
	}
}

var (
	programOnce  sync.Once
	programIndex map[string]*program
	gitIndex     map[string]*gitCommand
)

func loadPrograms() {
	table := programTable()
	programIndex = make(map[string]*program, 900)
	for i := range table {
		for name := range strings.FieldsSeq(table[i].names) {
			if programIndex[name] == nil {
				programIndex[name] = &table[i].program
			}
		}
	}
	gitIndex = make(map[string]*gitCommand, 120)
	for i := range gitCommands {
		for name := range strings.FieldsSeq(gitCommands[i].names) {
			gitIndex[name] = &gitCommands[i]
		}
	}
}

// lookupProgram returns what is known of a program, nil for nothing. A version
// at the end of its name does not count: python3.12 is python.
//
// Distributions put the machine that a program is for, or its flavour, into its
// name: x86_64-linux-gnu-gcc, perl5.36-x86_64-linux-gnu, vim.tiny.
func lookupProgram(name string) *program {
	programOnce.Do(loadPrograms)
	m := programIndex
	if p := m[name]; p != nil {
		return p
	}
	if p := m[strings.TrimRight(name, "0123456789.-")]; p != nil {
		return p
	}
	if p := m[targetName().ReplaceAllString(name, "")]; p != nil {
		return p
	}
	if strings.HasPrefix(name, "ld-") || strings.HasPrefix(name, "ld.so") || strings.HasPrefix(name, "ld64.so") {
		return m["ld"] // the loader runs what it is given
	}
	// Some file systems take names without regard to case.
	name = strings.TrimSuffix(strings.ToLower(name), ".exe")
	if strings.HasPrefix(name, "mkfs.") {
		return m["mkfs"]
	}
	return m[name]
}

// options is what was read from one argument list.
type options struct {
	seen     []option // those that a reader looks at, and written paths
	operands []Word
	unknown  string // an option that the table does not list
	bad      string // one that it marks with '!'
	loose    bool   // a word that is not constant can be an option
	code     *Word  // what is run
	glued    bool   // and it stands in the option's own word
	args     []Word // and its arguments
	inner    []innerCommand
}

// An innerCommand stands in the words after an option.
type innerCommand struct {
	by    string
	words []Word
}

type option struct {
	name string
	mark byte
	val  Word
}

var targetName = LazyRegexp(`^[a-z0-9_]+-linux-(gnu|musl)[a-z]*-|[0-9.]*-[a-z0-9_]+-linux-(gnu|musl)[a-z]*$|\.(tiny|basic|nox|gtk[0-9]?|athena|real|distrib)$|-sysv$|-tcp$`)

func (o *options) has(names ...string) bool {
	return slices.ContainsFunc(o.seen, func(s option) bool { return slices.Contains(names, s.name) })
}

// firm returns the first operand if it is constant.
func (o *options) firm() string {
	if len(o.operands) > 0 && o.operands[0].Const {
		return o.operands[0].Text
	}
	return ""
}

// An optionTable is the opts of a program, taken apart at its first use.
type optionTable struct {
	short        [128]byte // the mark of each, '*' without one, 0 if it is not listed
	long         map[string]byte
	wild         []string // stems of those that end in '*'
	single, stop bool
}

const marks = ":?>=^.!%"

var optionTables sync.Map // by opts

func optionsOf(opts string) *optionTable {
	if t, ok := optionTables.Load(opts); ok {
		return t.(*optionTable)
	}
	t := &optionTable{long: map[string]byte{}, single: strings.HasPrefix(opts, "-") && !strings.HasPrefix(opts, "--"), stop: strings.HasPrefix(opts, "+")}
	for field := range strings.FieldsSeq(opts) {
		mark := byte('*')
		if end := field[len(field)-1]; strings.IndexByte(marks, end) >= 0 && len(field) > 1 {
			mark = end
		}
		if field[0] == '-' {
			name := strings.TrimRight(field, marks)
			if stem, wild := strings.CutSuffix(name, "*"); wild {
				name = stem
				t.wild = append(t.wild, stem)
			}
			t.long[name] = mark
			continue
		}
		for i := 0; i < len(field); i++ { // a later field may say more of an option
			mark := byte('*')
			if i+1 < len(field) && strings.IndexByte(marks, field[i+1]) >= 0 {
				mark = field[i+1]
			}
			switch c := field[i]; {
			case c == '#':
				for d := '0'; d <= '9'; d++ {
					t.short[d] = mark
				}
			case c < 128:
				t.short[c] = mark
			}
			if mark != '*' {
				i++
			}
		}
	}
	optionTables.Store(opts, t)
	return t
}

// word finds an option that is a word, 0 if it is not listed.
func (t *optionTable) word(name string) byte {
	if mark := t.long[name]; mark != 0 {
		return mark
	}
	for _, stem := range t.wild {
		if strings.HasPrefix(name, stem) {
			return t.long[stem]
		}
	}
	return 0
}

// readOptions reads an argument list by a table.
func readOptions(opts string, words []Word) *options {
	o := &options{}
	t := optionsOf(opts)
	for i := 0; i < len(words); i++ {
		w := words[i]
		text := w.Text + w.Prefix
		if !w.Const && w.number { // it can be "-5", but that starts nothing
			text = "0"
		}
		if w.Const && text == "--" && !t.single {
			o.operands = append(o.operands, words[i+1:]...)
			return o
		}
		if !strings.HasPrefix(text, "-") || text == "-" && w.Const {
			if !w.Const && text == "" {
				o.loose = true
			}
			if t.stop {
				o.operands = words[i:]
				return o
			}
			o.operands = append(o.operands, w)
			continue
		}
		if t.single || strings.HasPrefix(text, "--") {
			i = o.long(t, words, i)
		} else {
			i = o.short(t, words, i)
		}
		if o.code != nil {
			o.args = words[min(i+1, len(words)):]
			return o
		}
	}
	return o
}

// long reads the option at words[i] and returns the index of its last word.
func (o *options) long(t *optionTable, words []Word, i int) int {
	w := words[i]
	text := w.Text + w.Prefix
	name, val, attached := strings.Cut(text, "=")
	if !w.Const && !attached {
		o.loose = true
		return i
	}
	if t.single && strings.HasPrefix(name, "--") {
		name = name[1:]
	}
	value := Word{Raw: val, Text: val, Const: w.Const}
	mark := t.word(name)
	if mark == 0 && t.single && attached {
		mark = t.word(text) // -std=c99
	}
	if mark == 0 {
		o.unknown = name
		// An abbreviation is taken for whatever it can stand for.
		for _, full := range slices.Sorted(maps.Keys(t.long)) {
			if mark := t.long[full]; strings.IndexByte("!^>", mark) >= 0 && len(name) > 2 && strings.HasPrefix(full, name) {
				if !attached && mark == '>' && i+1 < len(words) {
					value = words[i+1]
				}
				o.note(full, mark, value)
			}
		}
		return i
	}
	if attached && mark == '%' {
		o.bad = name
	}
	if !attached {
		i, value = o.value(mark, words, i)
	}
	o.note(name, mark, value)
	return i
}

// short reads the cluster at words[i].
func (o *options) short(t *optionTable, words []Word, i int) int {
	w := words[i]
	text := w.Text + w.Prefix
	for k := 1; k < len(text); k++ {
		mark, name := byte(0), "-"+text[k:k+1]
		if text[k] < 128 {
			mark = t.short[text[k]]
		}
		rest := text[k+1:]
		switch mark {
		case 0:
			o.unknown = name
			return i
		case '*', '^', '%':
			if mark == '%' {
				return o.command(words, i)
			}
			o.note(name, mark, Word{})
			continue
		case '!':
			o.bad = name
			return i
		}
		o.glued = o.glued || mark == '.' && rest != ""
		value := Word{Raw: rest, Text: rest, Const: w.Const}
		if rest == "" && w.Const && mark != '?' {
			i, value = o.value(mark, words, i)
		}
		o.note(name, mark, value)
		return i
	}
	if !w.Const { // a cluster that goes on with something unknown
		o.loose = true
	}
	return i
}

// value takes the next word as the value of the option at words[i].
func (o *options) value(mark byte, words []Word, i int) (int, Word) {
	switch mark {
	case '*', '?', '^', '!':
		return i, Word{}
	case '%':
		return o.command(words, i), Word{}
	}
	if i+1 >= len(words) {
		return i, Word{}
	}
	w := words[i+1]
	if w.Fields && !w.number || w.Const && len(w.Text) > 1 && w.Text[0] == '-' && mark != '.' && mark != '=' {
		// None or several words: what follows may be an option after all.
		o.loose = true
	}
	return i + 1, w
}

func (o *options) command(words []Word, i int) int {
	end := i + 1
	for end < len(words) && words[end].Text != ";" && !(words[end].Text == "+" && words[end-1].Text == "{}") {
		end++
	}
	o.inner = append(o.inner, innerCommand{words[i].Text, words[i+1 : end]})
	return end
}

func (o *options) note(name string, mark byte, val Word) {
	switch mark {
	case '!':
		o.bad = name
	case '.':
		o.code = &val
	case '>', '=', '^', '?':
		o.seen = append(o.seen, option{name, mark, val})
	}
}

// namesURL reports whether a word holds "scheme://".
func namesURL(s string) bool {
	for {
		i := strings.Index(s, "://")
		if i < 0 {
			return false
		}
		if i > 0 {
			if c := s[i-1] | 0x20; c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
				return true
			}
		}
		s = s[i+3:]
	}
}

// command adds what one program call does to the analysis.
func (a *analysis) command(c command) {
	if len(c.words) == 0 {
		return
	}
	argv := make([]string, len(c.words))
	for i := range c.words {
		w := &c.words[i]
		if argv[i] = w.Raw; w.Const {
			argv[i] = w.Text
		}
		a.network = a.network || namesURL(argv[i])
		a.hosts = addHosts(a.hosts, argv[i])
		a.peek(argv[i])
		if i > 0 {
			a.reach(*w, c.cwd)
		}
	}
	a.argv = append(a.argv, argv)
	if !c.words[0].Const || argv[0] == "" {
		a.setOpaque("the program is not constant")
		return
	}
	if c.depth > maxDepth {
		a.setOpaque("too many programs within programs")
		a.beyond(argv[1:])
		return
	}
	name := argv[0]
	base := path.Base(name)
	if !c.exec && base == name && a.builtin(name, &c) {
		return
	}
	p := lookupProgram(base)
	if p == nil {
		p = &program{}
	}
	c.call = progCall{word: name, widest: Always, download: a.downloads}
	o := &options{operands: c.words[1:]}
	if p.opts != "" {
		o = readOptions(p.opts, c.words[1:])
	}
	if p.warn != "" {
		a.warn(base + " " + p.warn)
	}
	if (c.piped || c.body != nil) && p.wrap == 0 && runsInput(p, o) {
		a.warn(base + " runs code that comes through a pipe")
	}
	if p.opaque != "" {
		a.setOpaque(base + ": " + p.opaque)
	}
	if p.networked(o.operands) {
		a.network = true
		a.downloads = a.downloads || listed(" curl wget wget2 aria2c axel http https xh scp rcp ftp sftp lftp nc ncat", base)
	}
	if p.wrap > 0 {
		a.unwrap(p, o, &c)
	}
	if p.read != nil {
		p.read(a, &c, o)
	}
	if o.bad != "" {
		a.warn(fmt.Sprintf("%s %s can make it run or load something else", base, o.bad))
	}
	if p.code != "" {
		c.limit(p.code)
	} else if p.strict && (o.bad != "" || o.unknown != "" || o.loose || slices.ContainsFunc(o.operands, plusWord)) {
		c.limit("this form of it can run something else or write elsewhere")
	}
	a.operandWrites(p, o, &c)
	for _, in := range o.inner { // with what was found put in for a mark, or after them
		words, inner := slices.Clone(in.words), c
		markWords(words, "{", "")
		inner.fed = true
		a.run(append(words, Word{Raw: "…", Fields: true}), &inner)
	}
	if !c.call.through && base != "git" && (c.call.widest < Always || !listed(plainTools, base)) {
		a.notGit = true
	}
	a.place(&c)
}

// runsInput reports whether a program reads code from its input: because it is told
// so, or because it starts an interpreter elsewhere, as in docker exec -i c sh.
func runsInput(p *program, o *options) bool {
	if p.code != startsAny {
		return p.read == nil && (p.code == givenCode || p.code == workCode) && slices.ContainsFunc(o.operands, func(w Word) bool { return isStdin(w.Text) })
	}
	n := len(o.operands)
	for n > 0 && strings.HasPrefix(o.operands[n-1].Text, "-") {
		n--
	}
	if n == 0 {
		return false
	}
	name, flags, _ := strings.Cut(o.operands[n-1].Text, " ")
	inner := lookupProgram(path.Base(name))
	return inner != nil && inner.stdin && strings.Trim(flags, " -eilsux") == ""
}

// networked reports whether a use of the program with these operands needs the
// network. Where options that are not listed come first, any word may be the
// sub-command.
func (p *program) networked(words []Word) bool {
	if len(words) > 0 && !strings.HasPrefix(words[0].Text, "-") {
		words = words[:1]
	}
	return p.net == "*" || slices.ContainsFunc(words, func(w Word) bool { return w.Text != "" && listed(p.net, w.Text) })
}

// attachedPath takes what stands before a path off a word: -f/x, --file=/x, @/x.
func attachedPath(text string) string {
	at := strings.IndexByte(text, '/')
	if at < 1 {
		return text
	}
	at = len(strings.TrimRight(text[:at], "."))
	if before := text[:at]; strings.HasSuffix(before, "@") || before == "if=" || strings.HasPrefix(before, "-") && (at == 2 || before[at-1] == '=') {
		return text[at:]
	}
	return text
}

// plusWord is an operand that some programs take for a command of theirs, or for
// a file with further options.
func plusWord(w Word) bool {
	text := w.Text + w.Prefix
	return text != "" && (text[0] == '+' || text[0] == '@')
}

// plainTools are programs beside git that leave a repository's own files alone
// when their operands do.
const plainTools = " cat ls cp mv mkdir rm rmdir touch head tail wc grep sort uniq cut tr diff cmp basename dirname realpath readlink stat file find sleep date sed tee seq test echo printf true false "

func (c *command) limit(why string) {
	if c.call.widest > Task {
		c.call.widest, c.call.why = Task, why
	}
}

// place adds the program to those that are looked up: a path from every folder
// that the line may be in.
func (a *analysis) place(c *command) {
	word := c.call.word
	add := func(word, unless string) {
		call := c.call
		call.word, call.unless = word, unless
		if slices.Contains(a.calls, call) {
			return
		}
		a.calls = append(a.calls, call)
		a.programs = append(a.programs, word)
		if base := path.Base(word); base != word && !call.script {
			a.programs = append(a.programs, base)
		}
	}
	if !strings.Contains(word, "/") || rooted(word) {
		add(word, "")
		return
	}
	for _, f := range c.cwd.at {
		if f.any {
			if !c.call.script { // a script's interpreter is asked for anyway
				a.setOpaque(fmt.Sprintf("which program %q is depends on a cd to a folder that is not known", word))
			}
			continue
		}
		add(joinPath(f.dir, word), f.unless)
	}
}

// script notes a file that an interpreter runs.
func (a *analysis) script(w Word, c *command) {
	p, ok := plainPath(w)
	if !ok {
		return
	}
	if isStdin(p) && (c.piped || c.body != nil) {
		a.warn(path.Base(c.call.word) + " runs code that comes through a pipe")
	}
	if !strings.Contains(p, "/") {
		p = "./" + p
	}
	s := *c
	s.call = progCall{word: p, script: true, download: a.downloads}
	a.place(&s)
}

// run adds a command that another one starts.
func (a *analysis) run(words []Word, c *command) {
	inner := *c
	inner.words, inner.exec, inner.call = words, true, progCall{}
	inner.depth++
	a.command(inner)
}

// unwrap looks through a program that runs its operands.
func (a *analysis) unwrap(p *program, o *options, c *command) {
	rest := o.operands[min(p.wrap-1, len(o.operands)):]
	if p.vars && len(rest) > 0 && rest[0].Const && rest[0].Text == "-" { // to env the same as -i
		rest = rest[1:]
	}
	for ; p.vars && len(rest) > 0; rest = rest[1:] {
		name, value, ok := strings.Cut(rest[0].Text+rest[0].Prefix, "=")
		if !ok {
			break
		}
		a.assign(name, Word{Raw: value, Text: value, Const: rest[0].Const}, true)
	}
	if o.unknown != "" || o.loose || len(rest) > 0 && strings.HasPrefix(rest[0].Text, "-") {
		a.setOpaque(fmt.Sprintf("what %s runs cannot be told from its options", path.Base(c.call.word)))
	}
	switch {
	case p.read != nil: // it knows more
	case len(rest) == 0:
		c.limit("it runs what it is given")
	default:
		a.run(rest, c)
		c.call.through = p.code == ""
	}
}

// operandWrites notes the paths that options and operands name for writing.
func (a *analysis) operandWrites(p *program, o *options, c *command) {
	list := o.operands
	for _, s := range o.seen {
		if s.mark == '>' && s.val.Raw != "" && s.val.Raw != "-" {
			a.writeWord(s.val, c.cwd)
			if s.name == "-t" || s.name == "--target-directory" {
				list = nil
			}
		}
	}
	switch p.writes {
	case 'l':
		list = list[max(len(list)-1, 0):]
	case 'r':
		list = list[min(1, len(list)):]
	case '1':
		list = list[:min(1, len(list))]
	case '2':
		list = list[min(1, len(list)):min(2, len(list))]
	case 0:
		return
	}
	for _, w := range list {
		if remote := w.Const && p.net == "*" && strings.Contains(w.Text, ":"); !remote {
			a.writeWord(w, c.cwd)
		}
	}
	if p.writes != 'l' && p.writes != 'a' || len(o.operands) < 2 || len(list) == 0 {
		return
	}
	dest := list[len(list)-1]
	for _, w := range o.operands[:len(o.operands)-1] { // into a folder, under its own name
		if why := writeWarning(path.Join(dest.Text, path.Base(w.Text))); why != "" && w.Const && dest.Const {
			a.warn(why + ": " + path.Join(dest.Text, path.Base(w.Text)))
		}
		if base := path.Base(c.call.word); (base == "ln" || base == "gln") && (!w.Const || rooted(w.Text) || strings.HasPrefix(w.Text, "..")) && a.loose == "" {
			a.loose = "it makes a link that can lead outside"
		}
	}
}
