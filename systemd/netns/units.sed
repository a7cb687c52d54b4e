# A host's unit as a template whose instance is the name of a network namespace in /run/netns:
#   sed -E -f units.sed fabricd.service > fabricd@.service
s/fabric-prober\.service/fabric-prober@%i.service/g
s/^Description=.*/& in network namespace %I/
# Namespaces come and go: what failed is not kept.
s/^After=.*/CollectMode=inactive-or-failed\nBindsTo=fabric-netns@%i.service\n& fabric-netns@%i.service/
s,/etc/fabricd/fabricd\.toml,/etc/fabricd/netns/%I/fabricd.toml,
# The host's address of the metrics endpoint is not the namespace's, and fabric-netns@ mounts stats.
/^Sockets=/d
/^Wants=run-fabricd-stats\.mount$/d
s/ run-fabricd-stats\.mount//
s,/run/fabricd/stats,/run/fabricd-netns/%I/stats,
s,/run/fabricd( |$),/run/fabricd-netns/%I\1,g
s,^(RuntimeDirectory|StateDirectory)=fabricd$,\1=fabricd-netns/%I,
/^\[Service\]$/a\
BindReadOnlyPaths=/run/fabricd-netns-sys/%I:/sys
# Not fabric-clock, which has no network at all.
/^RestrictAddressFamilies=.*AF_INET/i\
NetworkNamespacePath=/run/netns/%I
