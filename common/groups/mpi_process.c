/* The processes of a world: whether they run the same program, and whether they still run. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/groups/mpi_domain.h"

/* Grows when messages change their meaning. */
enum { VERSION = 1 };

static uint64_t mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 1099511628211u; }

/* Equal for processes whose numbers mean the same: the machine since it started, and the name
 * space of its process numbers. 0 where the system does not say. */
static uint64_t find_place(void)
{
    char boot[64];
    struct stat space;
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t bytes = read(file, boot, sizeof boot);
    close(file);
    if (bytes <= 0 || stat("/proc/self/ns/pid", &space) != 0) return 0;
    uint64_t hash = mix(14695981039346656037u, (uint64_t)space.st_ino);
    for (ssize_t i = 0; i < bytes; ++i) hash = mix(hash, (uint64_t)(unsigned char)boot[i]);
    return hash ? hash : 1;
}

pl_mpi_process pl_mpi_process_own(void)
{
    return (pl_mpi_process){.version = VERSION,
                            .head_bytes = (int64_t)sizeof(pl_mpi_head),
                            .id = (int64_t)getpid(),
                            .place = find_place()};
}

pl_status pl_mpi_process_match(const pl_mpi_domain *domain)
{
    const pl_mpi_process *own = &domain->processes[domain->rank];
    for (int i = 0; i < domain->ranks; ++i) {
        const pl_mpi_process *other = &domain->processes[i];
        if (other->version == own->version && other->head_bytes == own->head_bytes) continue;
        return PL_FAIL(PL_UNSUPPORTED,
                       "rank %d runs another version of pleat than rank %d: messages of version "
                       "%" PRId64 " and %" PRId64 "; start the same program on all ranks",
                       i, domain->rank, other->version, own->version);
    }
    return PL_OK;
}

pl_mpi_life pl_mpi_process_life(const pl_mpi_domain *domain, int rank)
{
    const pl_mpi_process *own = &domain->processes[domain->rank];
    const pl_mpi_process *other = &domain->processes[rank];
    if (own->place == 0 || own->place != other->place) return PL_MPI_UNKNOWN;
    return kill((pid_t)other->id, 0) != 0 && errno == ESRCH ? PL_MPI_GONE : PL_MPI_ALIVE;
}
