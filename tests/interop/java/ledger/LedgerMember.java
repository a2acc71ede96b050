import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;

/** One member of a DLedger group, run as a single source file. Arguments: group, peers, own id, folder, bytes of a data file, batch push. */
public class LedgerMember {
    public static void main(String[] arguments) throws Exception {
        DLedgerConfig config = new DLedgerConfig();
        config.setGroup(arguments[0]);
        config.setPeers(arguments[1]);
        config.setSelfId(arguments[2]);
        config.setStoreBaseDir(arguments[3]);
        config.setStoreType(DLedgerConfig.FILE);
        config.setMappedFileSizeForEntryData(Integer.parseInt(arguments[4]));
        config.setEnableBatchPush(Boolean.parseBoolean(arguments[5]));
        config.setDiskSpaceRatioToForceClean(0.95f);
        DLedgerServer server = new DLedgerServer(config);
        server.startup();
        System.out.println("ready");
        while (System.in.read() >= 0) {
            System.out.println(server.getMemberState().getRole() + " term=" + server.getMemberState().currTerm()
                + " end=" + server.getMemberState().getLedgerEndIndex()
                + " committed=" + server.getdLedgerStore().getCommittedIndex());
        }
        server.shutdown();
        System.out.println("stopped");
        System.exit(0);
    }
}
